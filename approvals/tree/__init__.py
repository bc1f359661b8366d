"""Turn what a sandbox left behind into a git tree, and say exactly what it changes.

The directory is hostile. Nothing in it is ever run, followed or believed: files are read through
directory handles that do not follow links, hashed here, and written into a bare repository of ours
as raw objects. Git reads no attributes, filters, hooks, or configuration of the machine, the person
or the candidate. `git diff --raw` on the two trees is the judge of what changed; nothing is listed
that it does not list and nothing it lists is left away.

The rules that need a sentence:

* **`.git` at the top** is the workspace's own repository. It is left out and listed.
* **Nested repositories**: a `.git` further down (directory or file, in any spelling that some file
  system reads as `.git`) is left out and listed as blocking; the files beside it are taken like any
  others. A tree can hold no `.git`, and what lies in one would escape review.
* **Submodules**: a workspace has no gitlink, so a candidate can neither add nor move one. A gitlink
  of the source stays as it is while nothing, or an empty directory, stands in its place. Files in
  its place replace it, which is listed. Nothing is ever fetched.
* **Links of the source that lead out of it** are never laid out in a workspace either, and stay as
  they are while nothing stands in their place.
* **LFS pointers** are the small text files they are. No filter runs and no object is fetched.
* **Attributes**: `.gitattributes` is content like any other. `-diff`, `filter`, `text`, `eol`,
  `working-tree-encoding` and the rest change neither what is stored nor how it is shown.
* **Ignored files**: a file that is new and that the *source commit's* own `.gitignore` files ignore
  is left out and counted, as are the caches of well-known tools. The candidate's own ignore files
  have no say, and a file the source tracks is never ignored.
* **Modes**: a file is executable if its owner may execute it. Other bits are not part of a tree.
* **Links** are stored as links, their target as content. None is followed, wherever it points.
* **Devices, sockets and pipes** are left out and listed as blocking.
* **Empty directories** do not exist in a tree.
* **Limits**: too many files, too many bytes, a single file too large, paths too deep or too long:
  the whole directory is refused (`TreeRefused`), because a part of it would be a lie.

The same directory and base always give the same tree, changes and list of what was left out.
"""

from __future__ import annotations

from approvals.tree.difference import list_changes, patch
from approvals.tree.errors import GitFailed, MaterialiseRefused, ObjectMissing, TreeRefused
from approvals.tree.materialising import materialise
from approvals.tree.reading import Blobs, Entry, list_tree, open_blobs, read_blob, tree_of
from approvals.tree.taking import TakenTree, build_tree, unchanged
from approvals.tree.walking import TreeLimits
from approvals.tree.writing import Author, make_commit

__all__ = [
    "Author", "Blobs", "Entry", "GitFailed", "MaterialiseRefused", "ObjectMissing", "TakenTree",
    "TreeLimits", "TreeRefused", "build_tree", "list_changes", "list_tree", "make_commit",
    "materialise", "open_blobs", "patch", "read_blob", "tree_of", "unchanged",
]  # fmt: skip
