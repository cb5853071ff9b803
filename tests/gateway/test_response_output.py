"""The items of a response do not depend on how the answer was cut into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from starspec.gateway.chat_text import ChatText
from starspec.gateway.generation_request import ReplyOptions
from starspec.gateway.responses.output import ResponseOutput
from starspec.gateway.responses.replies import Call, Message
from starspec.gateway.tools import HERMES, ToolUse

ANSWER = 'Well: <tool_call>\n{"name": "price", "arguments": {"fruit": "apple"}}\n</tool_call>\nI have asked.'


@given(st.sets(st.integers(1, len(ANSWER) - 1)))
def test_items_are_in_the_order_of_the_text(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(ANSWER)]
    pieces = [ANSWER[start:end] for start, end in pairwise(places)]
    text, output = ChatText(ReplyOptions(tool_use=ToolUse(HERMES, 16, None))), ResponseOutput()
    for number, piece in enumerate(pieces, start=1):
        list(output.add(text.deltas(piece, is_last=number == len(pieces))))
    list(output.end("completed"))
    before, call, behind = output.items
    assert isinstance(before, Message)
    assert isinstance(call, Call)
    assert isinstance(behind, Message)
    assert before.content[0].text == "Well:"
    assert (call.name, call.arguments) == ("price", '{"fruit": "apple"}')
    assert behind.content[0].text == "\nI have asked."
