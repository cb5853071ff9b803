"""The request bodies: OpenAI's, with vLLM's additions.

Types are strict, so that `"temperature": "hot"` is a 400 that names `temperature`. `SamplingParams` checks ranges of
sampling parameters. Keys that are not fields here are in `model_extra`, and `unsupported.py` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from starspec.config import MAX_DRAFT_TOKENS, MAX_TOP_LOGPROBS
from starspec.models.loading.tokenizer import ROLES
from starspec.quoting import quoted, shortened
from starspec.sampling.spec import MAX_BAD_WORDS, MAX_END_TOKENS, MAX_LOGIT_BIAS
from starspec.sampling_params import MAX_STOP_STRINGS

MAX_COUNT: Final = 2**31 - 1  # of a count or a token id
MAX_PROMPTS: Final = 64  # of one completion request
MAX_MESSAGES: Final = 4096
MAX_PARTS: Final = 1024  # of one message
MAX_TOOLS: Final = 128
MAX_STOP_TOKEN_IDS: Final = MAX_END_TOKENS // 2  # those of the model come besides
MAX_UNKNOWN: Final = 256  # keys of an object inside a body: each is compared with those that are known
MAX_MISSPELT: Final = 3  # characters by which a misspelt key is longer or shorter: underscores, and one letter
MIN_MISSPELT: Final = 4  # letters of a key of which one may be wrong
PARTS_OF_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_calls": ("assistant",),
    "reasoning": ("assistant",),
    "reasoning_content": ("assistant",),
    "tool_call_id": ("tool", "function"),
}


def encodable(text: str) -> str:
    """JSON can contain half a surrogate pair. UTF-8 and tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode text") from None
    return text


def known_role(role: str) -> str:
    if role not in ROLES:
        raise ValueError(f"must be one of {', '.join(ROLES)}, not {quoted(role)}")
    return role


def _positive(count: int) -> int:
    """In words; pydantic's would be "greater than or equal to"."""
    if count < 1:
        raise ValueError("must be at least 1")
    return count


def at_most(most: int) -> BeforeValidator:
    """A bound on an object's items. Pydantic counts them after it has looked at each and said what is wrong with it."""

    def check(given: Any) -> Any:
        if isinstance(given, dict) and len(given) > most:
            counts = {"most": most, "num": len(given)}
            raise PydanticCustomError("too_long", "should have at most {most} items, not {num}", counts)
        return given

    return BeforeValidator(check)


def switch_or_object(given: Any) -> Any:
    """Before pydantic says which branches of the union do not fit."""
    if given is not None and not isinstance(given, bool | dict):
        raise ValueError('must be true, false or an object, as {"num_speculative_tokens": 4}')
    return given


Text = Annotated[str, AfterValidator(encodable)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Limit = Annotated[int, Field(le=MAX_COUNT), AfterValidator(_positive)]
TokenIds = Annotated[list[Count], Field(fail_fast=True)]  # a body with a million wrong elements gives one error
Texts = Annotated[list[Text], Field(fail_fast=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Prompts = Field(fail_fast=True, max_length=MAX_PROMPTS)


class Body(BaseModel):
    """A JSON object. Null means absent. Unknown keys are kept in `model_extra`."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)


def _names_of(kind: type[BaseModel]) -> list[str]:
    """The keys of such an object."""
    return sorted(field.alias or name for name, field in kind.model_fields.items())


class Spelled(Body):
    """An object inside a body to which clients add keys of their own. Those that are ours, misspelt, would be lost."""

    @model_validator(mode="after")
    def _spells_its_keys(self) -> Self:
        unknown = self.model_extra or {}
        if len(unknown) > MAX_UNKNOWN:
            raise ValueError(f"has {len(unknown)} unknown keys; {MAX_UNKNOWN} are allowed")
        known = _names_of(type(self)) if unknown else []
        for name in unknown:
            meant = next((each for each in known if _is_meant(each, name)), None)
            if meant is not None:
                raise ValueError(f"unknown key {quoted(name)}; did you mean '{meant}'?")
        return self


def _is_meant(known: str, name: str) -> bool:
    """Whether a name is a known one but for case, underscores and one letter. Quick: a body may have many names."""
    if abs(len(known) - len(name)) > MAX_MISSPELT:
        return False
    ours, theirs = known.replace("_", ""), name.replace("_", "").lower()
    if ours == theirs or len(ours) < MIN_MISSPELT:
        return ours == theirs
    pairs = enumerate(zip(ours, theirs, strict=False))
    start = next((place for place, (our, their) in pairs if our != their), min(len(ours), len(theirs)))
    left, right = ours[start:], theirs[start:]
    return left[1:] == right[1:] or left == right[1:] or left[1:] == right


class Known(Body):
    """An object inside a body, without unknown keys."""

    @model_validator(mode="after")
    def _knows_all_keys(self) -> Self:
        for name in self.model_extra or ():
            known = _names_of(type(self))
            near = get_close_matches(shortened(name), known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"unknown key {quoted(name)}; {hint}")
        return self


class StreamOptions(Known):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # accepted for compatibility and not used


class DrawFields(Body):
    """What decides the next token."""

    model: Text | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_COUNT)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: Annotated[dict[str, Number], at_most(MAX_LOGIT_BIAS)] | None = None
    bad_words: Annotated[Texts, Field(max_length=MAX_BAD_WORDS // 2)] | None = None
    seed: int | None = None


class SamplingFields(DrawFields):
    """The fields of both kinds of completion."""

    n: Count | None = None
    max_tokens: Limit | None = None
    min_tokens: Count | None = None
    stop: Text | Annotated[Texts, Field(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    speculative: Annotated[bool | dict[str, Any] | None, BeforeValidator(switch_or_object)] = None
    return_token_ids: bool | None = None
    prompt_logprobs: Count | None = None
    user: str | None = None  # accepted for compatibility and not used


class CompletionRequest(SamplingFields):
    prompt: Text | Annotated[list[Text], Prompts] | TokenIds | Annotated[list[TokenIds], Prompts]
    logprobs: Count | None = None
    echo: bool | None = None
    max_tokens: Annotated[int, Field(le=MAX_COUNT)] | None = None  # at least 1; with echo, 0 = only the prompt
    add_special_tokens: bool | None = None


class VerifyRequest(DrawFields):
    prompt: Text | TokenIds
    draft_token_ids: Annotated[TokenIds, Field(max_length=MAX_DRAFT_TOKENS)]
    parents: Annotated[list[int], Field(max_length=MAX_DRAFT_TOKENS, fail_fast=True)] | None = None  # None: a chain
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None  # after the prompt and each node
    add_special_tokens: bool | None = None


class TextPart(Body):
    type: Literal["text"]
    text: Text


class FunctionCall(Spelled):
    name: Text
    arguments: Text  # JSON


class ToolCall(Spelled):
    """A call that an assistant has made before."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Function(Spelled):
    name: Annotated[Text, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema
    strict: bool | None = None


class FunctionTool(Spelled):
    type: Literal["function"]
    function: Function


class FunctionName(Known):
    name: Text


class NamedTool(Known):
    """The tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class ChatMessage(Spelled):
    role: Annotated[Text, AfterValidator(known_role)]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)] | None = Field(
        None, validate_default=True
    )
    name: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_call_id: Text | None = None
    reasoning: Text | None = None  # of an assistant; so is the next, by an older name
    reasoning_content: Text | None = None

    @field_validator("content")
    @classmethod
    def _only_an_assistant_may_say_nothing(cls, content: Any, info: ValidationInfo) -> Any:
        """An assistant that calls a tool needs no text. If the role itself is invalid, that error is reported."""
        if content in (None, []) and info.data.get("role", "assistant") != "assistant":
            raise PydanticCustomError("missing", "Field required")
        return content

    @model_validator(mode="after")
    def _has_what_its_role_has(self) -> Self:
        """Templates do not see the rest."""
        for name, roles in PARTS_OF_ROLES.items():
            if getattr(self, name) and self.role not in roles:
                raise ValueError(f"{name} is not for messages of the role '{self.role}': leave it out")
        if self.reasoning and self.reasoning_content and self.reasoning != self.reasoning_content:
            raise ValueError("reasoning and reasoning_content are names of one text: leave one out")
        return self


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class ChatPrompt(Body):
    """The inputs of the chat template."""

    messages: Messages
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Prediction(Known):
    """What the client expects as the answer, for the most part."""

    type: Literal["content"]
    content: Text | Annotated[list[TextPart], Field(fail_fast=True, max_length=MAX_PARTS)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatCompletionRequest(ChatPrompt, SamplingFields):
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    max_completion_tokens: Limit | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    prediction: Prediction | None = None


class TokenizeRequest(Body):
    """A prompt, or messages for the chat template."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    model: Text | None = None
    tokens: TokenIds
