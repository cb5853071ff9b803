"""What commands ask of a running gateway: its star, and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from starspec.config.checks import check_api_key
from starspec.config.option import NETWORK, NONE_GIVEN
from starspec.errors import ConfigError, StarspecError
from starspec.quoting import quoted

if TYPE_CHECKING:
    import httpx

    from starspec.observe.view import StarView

DEFAULT_URL: Final = "http://127.0.0.1:8000"
CONNECT_S: Final = 5.0
SILENCE_S: Final = 120.0  # of a gateway that generates; its streams have a comment every 15 s
PAGES: Final = ("/dashboard", "/v1")  # what people copy along with the address

GatewayUrl = Annotated[str, typer.Argument(help="The gateway's address, as `starspec up` prints it.", metavar="URL")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="Key of the gateway; prefer the variable, which does not show in process lists.",
        envvar="STARSPEC_API_KEY",
        show_default=NONE_GIVEN,
        rich_help_panel=NETWORK,
    ),
]


class GatewayClient:
    """A running gateway. Each method raises a StarspecError with a sentence if the gateway does not answer.

    Raises: ConfigError if the address, the key or a proxy cannot be used.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        import httpx  # noqa: PLC0415 (a tenth of a second)

        address = url.rstrip("/")
        for page in PAGES:
            address = address.removesuffix(page)
        self.url = address if "://" in address else f"http://{address}"
        if api_key is not None:
            check_api_key(api_key)
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            base = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ConfigError(
                f"{quoted(url)} is not the address of a gateway, such as {DEFAULT_URL}: {error}"
            ) from error
        try:
            self._http = httpx.Client(base_url=base, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
            what = "environment variables name a proxy or certificates (SSL_CERT_FILE) that cannot be used"
            raise ConfigError(f"{what}: {error}") from error

    def views(self) -> Iterator[StarView]:
        """The star, twice a second, until the gateway stops."""
        from starspec.observe.view import StarView  # noqa: PLC0415

        has_come = False
        with self._stream("GET", "/dashboard/events") as lines:
            for data in lines:
                with self._reading():
                    view = msgspec.json.decode(data, type=StarView)
                has_come = True
                yield view
        if not has_come:
            raise self._stranger()

    def models(self) -> list[str]:
        """The names of the models that it serves; at least one."""
        with self._asking():
            response = self._http.get("/v1/models")
            _check(response)
        with self._reading():
            first, *others = [str(each["id"]) for each in response.json()["data"]]
        return [first, *others]

    def chat(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks of an answer; the last one has its usage."""
        chunk: dict[str, Any] = {}
        with self._stream("POST", "/v1/chat/completions", json=body) as lines:
            for data in lines:
                if data != "[DONE]":
                    with self._reading():
                        chunk = _chunk(data)
                    yield chunk
        if not chunk.get("usage"):
            raise self._stranger()

    @contextmanager
    def _stream(self, method: str, path: str, **body: Any) -> Iterator[Iterator[str]]:
        """The data of server-sent events."""
        with self._asking(), self._http.stream(method, path, **body) as response:
            if response.is_error:
                response.read()
            _check(response)
            yield (line.removeprefix("data: ") for line in _lines(response) if line.startswith("data: "))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what fails to be read into a sentence: what answers may not be a gateway."""
        try:
            yield
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._stranger() from error

    def _stranger(self) -> StarspecError:
        return StarspecError(f"what answers at {self.url} is not a starspec gateway of this release")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        import httpx  # noqa: PLC0415

        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise StarspecError(f"the gateway at {self.url} does not answer: {error}") from error


def _lines(response: httpx.Response) -> Iterator[str]:
    """Its whole lines. httpx would also end them at characters that JSON may hold, such as U+2028."""
    rest = ""
    for piece in response.iter_text():
        *whole, rest = (rest + piece).split("\n")
        yield from (line.removesuffix("\r") for line in whole)


def _check(response: httpx.Response) -> None:
    """Raises: StarspecError unless the gateway has done what it was asked."""
    if response.is_error:
        try:
            why = response.json()["error"]["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            why = f"it answers {response.status_code}"
        raise StarspecError(f"the gateway refuses: {why}")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int


class _Drafts(msgspec.Struct):
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    mean_acceptance_length: float = 0.0


class _Metrics(msgspec.Struct):
    tokens_per_second: float | None = None
    speculative_decoding: _Drafts | None = None


class _Chunk(msgspec.Struct):
    """What `starspec chat` shows of a chunk."""

    choices: list[_Choice]
    usage: _Usage | None = None
    metrics: _Metrics | None = None


def _chunk(data: str) -> dict[str, Any]:
    """Raises: StarspecError for the gateway's own error; ValueError, KeyError, TypeError or RecursionError."""
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        raise StarspecError(chunk["error"]["message"])
    msgspec.convert(chunk, _Chunk)
    return chunk
