"""The page and its files, as they lie in the folder `static`. They tell nothing of the star."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
HEADERS: Final = {  # the page runs its own files, talks to this gateway, and is in no frame of others
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class PageFile(NamedTuple):
    """One file of the page."""

    content: bytes
    media_type: str

    def response(self) -> Response:
        return Response(self.content, headers=HEADERS, media_type=self.media_type)


def _path_of(name: str) -> str:
    return "/dashboard" if name == INDEX else f"/dashboard/{name}"


PAGE_FILES: Final = {
    _path_of(each.name): PageFile(each.read_bytes(), MEDIA_TYPES[each.suffix]) for each in sorted(FOLDER.iterdir())
}
"""By path."""
