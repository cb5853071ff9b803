"""From a grammar as a request states it to one that llguidance compiles, or to a sentence about what is wrong where."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

from starspec.errors import RequestError
from starspec.grammars.finite import NOTHING_FITS, has_finite_text
from starspec.grammars.keywords import Misread, check_keywords, subschemas
from starspec.grammars.vocabulary import bytes_and
from starspec.json_text import parse_json
from starspec.quoting import readable, shortened
from starspec.sampling.grammar import GrammarSpec

# Whitespace between the parts of JSON is bounded: a model that samples it again and again would never end.
JSON_OPTIONS: Final[Any] = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,20}"}
NO_EXTENSION: Final = "NoExtensionBias"  # llguidance's word
ONE_OF: Final = "oneOf constraints are not supported."  # how its sentence begins
OVERLAP: Final = (
    "oneOf: the same text may fit several of its schemas, which cannot be kept out: use anyOf, or set them apart, as "
    "by a required property with a 'const' of its own"
)
NOT_VERBOSE: Final = "<non-verbose/>"  # in place of the parser's state
MAX_SEARCHED: Final = 2**18  # characters of subschemas that are compiled to find the one that is at fault
MAX_COMPLAINT: Final = 500  # characters
GBNF_RULE: Final = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)  # no line of Lark begins so
# In GBNF, what a name is not part of, or else a name.
GBNF_NAME: Final = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|([\w-]+)')
RULE: Final = re.compile(r"[\w})\]]\s*:")  # what a rule begins with; keys of JSON end with a quote before the colon
MAX_RULES: Final = 1000
MAX_GBNF: Final = 2**14  # characters; its conversion takes the square of a chain of rules
EMBEDDED: Final = re.compile(r"%json\s*(?=\{)")  # in Lark, what comes before a JSON schema
SHARED: Final = ("$defs", "definitions")  # what references of subschemas mostly lead to


def limits() -> LLParserLimits:
    """What a grammar may cost: some 20 MiB, and some 0.03 s a step. Mostly it is a thousandth of that."""
    return LLParserLimits(
        max_grammar_size=100_000,
        initial_lexer_fuel=100_000,  # an enum of 500 texts takes 13,000
        step_lexer_fuel=50_000,  # schemas 12 levels deep take 5,000
        max_lexer_states=10_000,
        step_max_items=10_000,
        verbose_errors=False,  # they would quote the state of the parser, at any length
    )


def check_grammar(spec: GrammarSpec, special_tokens: tuple[str, ...] = ()) -> None:
    """Compile a grammar for single bytes, and forget it. Raises: RequestError that names the parameter and place.

    Args:
        special_tokens: names of the model's, for which a grammar can ask.
    """
    complaint = _complaint(source_of(spec), special_tokens)
    if complaint:
        raise refusal(spec, complaint)


def source_of(spec: GrammarSpec) -> str:
    """The grammar in llguidance's form. Raises: RequestError if the text is not of its kind."""
    try:
        match spec.kind:
            case "json":
                schema = _schema(spec)
                check_keywords(schema)
                return _of_schema(schema)
            case "regex":
                return LLMatcher.grammar_from_regex(spec.text)
            case "choice":
                choices = [json.dumps(each) for each in json.loads(spec.text)]  # Lark takes no \x7f that is not escaped
                return LLMatcher.grammar_from_lark(f"start: {' | '.join(choices)}")
            case "grammar":
                text = _lark(spec.text)
                for schema in _embedded(text):
                    check_keywords(schema)
                return LLMatcher.grammar_from_lark(text)
    except Misread as error:
        raise _error(spec, str(error)) from error
    except (ValueError, RecursionError) as error:
        raise refusal(spec, str(error)) from error


def refusal(spec: GrammarSpec, complaint: str) -> RequestError:
    """The error for a complaint. It says the place in a JSON schema."""
    return _error(spec, complaint, _place(spec, complaint) if spec.kind == "json" else "")


def _error(spec: GrammarSpec, complaint: str, place: str = "") -> RequestError:
    name = f"structured_outputs.{spec.kind}"
    lines = [readable(each) for each in complaint.strip().splitlines()]  # a picture of the place, in a regex
    return RequestError(f"{name}: {shortened(chr(10).join(lines), MAX_COMPLAINT)}{place}", name)


def _of_schema(schema: dict[str, Any]) -> str:
    if not has_finite_text(schema):  # llguidance lets an answer begin that can never end
        raise ValueError(NOTHING_FITS)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), JSON_OPTIONS)


def _lark(text: str) -> str:
    """Lark, or GBNF converted to it. GBNF is what has rules with `::=`.

    A chain of thousands of rules would end this process: the library follows it on the stack.
    """
    if GBNF_RULE.search(text):
        text = _converted(text)
    num_rules = len(RULE.findall(text))
    if num_rules > MAX_RULES:
        raise ValueError(f"has {num_rules} rules; {MAX_RULES} are allowed")
    return text


def _embedded(lark: str) -> Iterator[dict[str, Any]]:
    """The JSON schemas in a grammar. Of one that is not JSON, llguidance says more."""
    for found in EMBEDDED.finditer(lark):
        with contextlib.suppress(ValueError):
            yield json.JSONDecoder().raw_decode(lark, found.end())[0]


def _converted(gbnf: str) -> str:
    if len(gbnf) > MAX_GBNF:
        raise ValueError(
            f"has {len(gbnf)} characters; GBNF, with '::=' in its rules, may have {MAX_GBNF}, and more only Lark"
        )
    try:
        return gbnf_to_lark(_with_distinct_names(gbnf))
    except Exception as error:  # the converter raises nothing more special
        raise ValueError(f"read as GBNF, because its rules have '::=': {error}") from error


def _with_distinct_names(gbnf: str) -> str:
    """The same grammar, with a number behind names of rules that would be the same in Lark.

    The converter calls `root` `start`. Names of Lark are in lower case, or in upper case, and have no hyphens.
    """
    names: dict[str, str] = {}
    taken = {"start"}
    for name in dict.fromkeys(GBNF_RULE.findall(gbnf)):
        number, names[name] = 1, name
        while _folded(names[name]) in taken:
            number += 1
            names[name] = f"{name}-{number}"
        taken.add(_folded(names[name]))
    return GBNF_NAME.sub(lambda found: names.get(found[1] or "", found[0]), gbnf)


def _folded(name: str) -> str:
    """The same for names of rules that could be the same in Lark."""
    return name.replace("-", "").replace("_", "").lower()


def start(source: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher before the first token of an answer. It is in its error state if something is wrong.

    The first step is part of it, as it may exceed a limit. Releases Python's lock.
    """
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def complaint_of(matcher: LLMatcher) -> str:
    """What llguidance has to say against a grammar, in words for people; mostly nothing."""
    lines = [each for each in matcher.get_error().splitlines() if each != NOT_VERBOSE]
    if any(each.startswith(ONE_OF) for each in lines):  # the rest names an option of its own
        return OVERLAP
    return "\n".join(NOTHING_FITS if each == NO_EXTENSION else each for each in lines)


def _complaint(source: str, special_tokens: tuple[str, ...] = ()) -> str:
    return complaint_of(start(source, bytes_and(special_tokens)))


def _complaint_about(schema: dict[str, Any]) -> str:
    try:
        return _complaint(_of_schema(schema))
    except ValueError as error:
        return str(error)


def _schema(spec: GrammarSpec) -> dict[str, Any]:
    schema = parse_json(spec.text)
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema must be an object")
    return schema


def _place(spec: GrammarSpec, complaint: str) -> str:
    """Where in a JSON schema a complaint arises: the smallest subschema that has the same one."""
    try:
        here = _schema(spec)
    except (ValueError, RecursionError):
        return ""  # the complaint says the line
    shared: dict[str, Any] = {key: here[key] for key in SHARED if key in here}
    pointer, num_left = "#", MAX_SEARCHED
    is_found = True
    while is_found:
        is_found = False
        for step, each in subschemas(here):
            alone = shared | each
            num_left -= len(json.dumps(alone))
            if num_left < 0:
                break
            if _complaint_about(alone) == complaint:
                pointer, here, is_found = pointer + step, each, True
                break
    return f" (at {shortened(readable(pointer))})"
