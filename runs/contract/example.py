"""A complete contract with every section, shown on the page of new contracts."""

EXAMPLE = '''\
# One job, on one page. What is not written here, the agent may not do.
name = "repair-parser"
outcome = "The parser accepts dates with one digit, and the whole test suite passes."
acceptance = [
    "tests/test_dates.py passes and no other test was changed",
    "CHANGELOG.md names the repair",
]
capabilities = ["shell", "files"]

[agent]
name = "mender"
version = "1"
prompt_version = "3"
model = "gpt-5.1"
instructions = """
Find out why dates with one digit are refused. Repair the cause, not the test.
Write output/report.md: what was wrong, what you changed, how you checked it.
"""

[source]
git = "https://git.example.com/team/parser.git"
ref = "main"
submodules = "refuse"       # or "leave-out"
lfs = "refuse"              # or "keep-pointers"
links_out = "refuse"        # or "leave-out"

[inputs]                    # place below input/, read-only = file or folder of the source
"style-guide.md" = "docs/style-guide.md"

[files]                     # place below input/, read-only = text
"task.md" = "See issue 118.\\n"

[environment]               # credentials only by reference
LANG = "C.UTF-8"
PACKAGE_INDEX = { reference = "package-index" }

[tools]
builtin = ["exec_command", "apply_patch"]
ask_person = true

[[tools.http]]
name = "tracker_create_issue"
description = "Open an issue in the team's tracker."
method = "POST"
base = "tracker"            # an address from the portal's settings
url = "{base}/projects/{project}/issues"
credential = "tracker-token"
response = ["number", "url"]
idempotent = true           # the service does a request with the same Idempotency-Key once
retries = 2                 # so it may be sent again where no answer comes

[tools.http.parameters]
type = "object"
required = ["project", "title"]

[tools.http.parameters.properties]
project = { type = "string", maxLength = 40 }
title = { type = "string", maxLength = 120 }
text = { type = "string", maxLength = 4000 }

[[tools.sql]]
name = "orders_of_customer"
description = "Read the orders of one customer."
engine = "postgresql"       # or "sqlite"
database = "orders"         # an address from the portal's settings
statement = "SELECT id, total FROM orders WHERE customer = :customer"
max_rows = 50

[tools.sql.parameters]
type = "object"
required = ["customer"]

[tools.sql.parameters.properties]
customer = { type = "string", maxLength = 40 }

[fallback]                  # what a person may let go on without a sandbox after it failed
tools = ["tracker_create_issue", "orders_of_customer"]
instructions = "Find out by the orders whom it concerns, and open an issue for each."

[network]
mode = "off"                # or "allowlist", "request"

[limits]
wall_minutes = 30
turns = 40
tokens = 400000
money = "2.00"
currency = "USD"

[verification]
command = ["python", "-m", "pytest", "-q"]
timeout_seconds = 300

[output]
allowed_paths = ["src/**", "tests/**", "CHANGELOG.md"]
max_files = 20
max_bytes = 200000

[gate]
approvals = 1
expires_minutes = 1440
valid_minutes = 60

[target]
kind = "github"             # or "git" with url or path
repository = "team/parser"
base = "main"
branch_prefix = "imprimatur/"
title = "{name}: {outcome}"
credential = "github-publisher"
'''
