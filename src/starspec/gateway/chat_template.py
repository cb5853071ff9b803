"""Renders a model's chat template within a time limit. A template is a program: it can fail, and it can loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from starspec.errors import RequestError
from starspec.quoting import shortened

LIMIT_S: Final = 5.0
OF_TEMPLATES: Final = "<template>"  # the file name that jinja2 gives to code compiled from a string
LINES_BETWEEN_LOOKS: Final = 64  # at the clock; a line takes microseconds

Trace = Callable[[FrameType, str, Any], Any]


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: a transformers tokenizer.
        clock: seconds, monotonic.
    """

    def __init__(self, tokenizer: Any, clock: Callable[[], float]) -> None:
        self._tokenizer = tokenizer
        self._clock = clock

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        opens: bool,
        continues: bool,
        extra: Mapping[str, Any],
    ) -> str:
        """The text of a conversation.

        Args:
            tools: that the model is told of; None = none.
            opens: the text ends where the assistant's next message begins.
            continues: the text ends within the last message.
            extra: further variables of the template.
        Raises: RequestError if the template fails, for whatever reason, or takes longer than LIMIT_S.
        """
        render = self._tokenizer.apply_chat_template
        try:
            text = str(
                self._within_limit(
                    lambda: render(
                        list(messages),
                        tools=tools,
                        tokenize=False,
                        add_generation_prompt=opens,
                        continue_final_message=continues,
                        **extra,
                    )
                )
            )
        except RequestError:
            raise
        except RecursionError as error:
            given = {"tools": tools, "chat_template_kwargs": extra}  # messages nest in the arguments of calls only
            param = next((name for name, value in given.items() if value), "messages")
            raise RequestError(f"{param} are nested too deeply", param) from error
        except Exception as error:
            why = shortened(str(error)) or type(error).__name__
            raise RequestError(f"the chat template refused the messages: {why}", "messages") from error
        _check_characters(text)
        return text

    def _within_limit(self, work: Callable[[], Any]) -> Any:
        """Effects: Python calls back on each line of the template, which is what can end an endless loop."""
        before = sys.gettrace()
        sys.settrace(self._stopwatch())
        try:
            return work()
        finally:
            sys.settrace(before)

    def _stopwatch(self) -> Trace:
        until_s = self._clock() + LIMIT_S
        num_lines = 0

        def trace(frame: FrameType, event: str, arg: Any) -> Trace | None:  # noqa: ARG001 (the interpreter's signature)
            nonlocal num_lines
            if frame.f_code.co_filename != OF_TEMPLATES:
                return None  # what a template calls ends by itself
            num_lines += 1
            if num_lines % LINES_BETWEEN_LOOKS == 0 and self._clock() > until_s:
                raise RequestError(
                    f"the chat template has not ended after {LIMIT_S:.0f} s: send fewer messages, or other "
                    "chat_template_kwargs",
                    "messages",
                )
            return trace

        return trace


def _check_characters(text: str) -> None:
    """Raises: RequestError for half of a surrogate pair: JSON can spell one, and no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = "the messages, the arguments of their calls, tools and chat_template_kwargs"
        raise RequestError(f"{where} must be valid Unicode text", "messages") from error
