"""Answers that are kept and not shown, sent while they are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse

from portal import tenancy
from portal.access import TenantRequest

_PIECE = 256 * 1024


def streamed(
    request: TenantRequest, lines: Iterable[bytes], name: str, content_type: str
) -> StreamingHttpResponse:
    """The lines under a name of ours, made as they are sent.

    By then the view has returned and its door is closed, so the tenant's door is opened anew.
    """
    pieces = _pieces(lines, request.tenant.pk)
    # Django would read a plain iterator to its end before it sends anything here.
    asynchronous = isinstance(request, ASGIRequest)
    response = StreamingHttpResponse(
        _in_turn(pieces) if asynchronous else pieces, content_type=content_type
    )
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["Cache-Control"] = "no-store"
    return response


def _pieces(lines: Iterable[bytes], tenant_id: int) -> Iterator[bytes]:
    """Several lines at a time, because each piece is a change of threads."""
    with tenancy.scope(tenant_id):
        piece: list[bytes] = []
        size = 0
        for line in lines:
            piece.append(line)
            size += len(line)
            if size >= _PIECE:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)


async def _in_turn(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, each made in the thread that has the request's connection."""
    advance = sync_to_async(lambda: next(pieces, None))
    try:
        while (piece := await advance()) is not None:
            yield piece
    finally:
        await sync_to_async(getattr(pieces, "close", lambda: None))()
