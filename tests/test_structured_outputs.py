"""What a request says about the form of its answer becomes a grammar, or an error that names it."""

import pytest

from starspec.errors import RequestError
from starspec.request_specs import request_specs
from starspec.sampling.grammar import MAX_GRAMMAR_BYTES, GrammarSpec
from starspec.sampling_params import SamplingParams
from starspec.structured_outputs import StructuredOutputsParams


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"json": {"type": "integer"}}, GrammarSpec("json", '{"type":"integer"}')),
        ({"json": '{"type": "null"}'}, GrammarSpec("json", '{"type": "null"}')),
        ({"regex": "[0-9]+"}, GrammarSpec("regex", "[0-9]+")),
        ({"choice": ["ja", "né"]}, GrammarSpec("choice", '["ja", "né"]')),
        ({"grammar": 'start: "a"'}, GrammarSpec("grammar", 'start: "a"')),
        ({"json_object": True}, GrammarSpec("json", '{"type":"object"}')),
    ],
)
def test_each_form_reaches_the_target_as_a_grammar(given, spec) -> None:
    for form in (given, StructuredOutputsParams(**given)):
        params = SamplingParams(structured_outputs=form, n=2)
        assert [each.grammar for each in request_specs([1], params, (0,))] == [spec, spec]


def test_an_answer_of_any_form_has_no_grammar() -> None:
    assert request_specs([1], SamplingParams(), (0,))[0].grammar is None


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({}, "structured_outputs", "exactly one"),
        ({"regex": "a", "choice": ["a"]}, "structured_outputs", "it has regex, choice"),
        ({"regx": "a"}, "structured_outputs", "'regx' is not supported"),
        ("a", "structured_outputs", "must be an object"),
        ({"regex": 3}, "structured_outputs.regex", "must be a string"),
        ({"json": 3}, "structured_outputs.json", "must be a JSON schema"),
        ({"json": {"a": {1}}}, "structured_outputs.json", "cannot be written as JSON"),
        ({"choice": []}, "structured_outputs.choice", "1 to 4096"),
        ({"choice": "ab"}, "structured_outputs.choice", "list of strings"),
        ({"regex": "a" * (MAX_GRAMMAR_BYTES + 1)}, "structured_outputs.regex", "32769 bytes; 32768 are allowed"),
        ({"regex": "\ud800"}, "structured_outputs.regex", "valid Unicode"),
    ],
)
def test_what_is_no_form_is_refused_by_name(given, param, words) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        SamplingParams(structured_outputs=given)
    assert caught.value.param == param
