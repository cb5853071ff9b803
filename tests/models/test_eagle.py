"""The running head against a slow reference: one slot and one attention head at a time."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from eagle_checkpoints import TOKEN_IDS, make_head
from tiny import make_config

from starspec.config import DEFAULT_MAX_MODEL_LEN
from starspec.errors import CacheRangeError, ModelError
from starspec.models.heads.head import EagleHead
from starspec.models.linear.dense import pack_dense
from starspec.models.runner import Segment
from starspec.train.head import TrainedHead
from starspec.train.unroll import Batch, unroll

TOLERANCE = {"atol": 2e-5, "rtol": 2e-4}  # float32: only the order of sums differs
VARIANTS = {
    "eagle": ("eagle", {}),
    "eagle without bias": ("eagle", {"without": ("fc.bias",)}),
    "eagle that norms its input": ("eagle", {"has_input_norm": True}),
    "eagle3": ("eagle3", {}),
    "eagle3, residual after the norm": ("eagle3", {"norm_before_residual": True}),
    "eagle3, wider than its target": ("eagle3", {"hidden_size": 20, "without": ()}),
    "eagle3 of one layer": ("eagle3", {"feature_layers": (7,)}),
    "one key for all queries": ("eagle3", {"num_key_value_heads": 1}),
    "scaled positions": ("eagle", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
}
TREE = (-1, -1, 0, 0, 1, 2)  # a and b; of a: c, d; of b: e; of c: f
LAYERS = ((0, 2), (2, 5), (5, 6))  # its nodes, draft step by draft step


def make_weights(variant):
    """A random head with small numbers, so that no softmax is one-hot, and with norms that are not all ones."""
    method, changes = VARIANTS[variant]
    head = make_head(method, **{"without": (), **changes})
    for name, tensor in head.tensors.items():
        head.tensors[name] = tensor * 0.2 + 1 if "norm" in name else tensor * (1.0 if "embed" in name else 0.15)
    return head


def make_running(weights, num_rows=4):
    return EagleHead(weights, make_config(num_rows=num_rows), "tiny", pack_dense, pack_dense)


def features_of(weights, num_positions, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_positions, weights.spec.feature_size, generator=generator)


def tokens_of(num, seed=0):
    return torch.randint(0, 40, (num,), generator=torch.Generator().manual_seed(100 + seed)).tolist()


# ---------------------------------------------------------------- the reference


class SlowHead:
    """One sequence of slots; each attends to all before it."""

    def __init__(self, weights):
        self.spec = weights.spec
        self.tensors = {name: tensor.float() for name, tensor in weights.tensors.items()}
        self.keys, self.values = [], []  # a slot: [Hkv][D]

    def fuse(self, feature):
        return self._linear("fc", feature) if self.spec.method == "eagle3" else feature

    def read(self, token_id, feature):
        """The next slot. Returns: its logits, and the substitute for the next feature."""
        embedded = self.tensors["embed_tokens.weight"][token_id]
        if self.spec.method == "eagle3":
            normed = self._norm("layers.0.hidden_norm", feature)
            joined = torch.cat([self._norm("layers.0.input_layernorm", embedded), normed])
            residual = normed if self.spec.norm_before_residual else feature
        else:
            residual = self._linear("fc", torch.cat([embedded, feature]))
            joined = self._norm("layers.0.input_layernorm", residual) if self.spec.has_input_norm else residual
        said = residual + self._attention(joined)
        said = said + self._mlp(self._norm("layers.0.post_attention_layernorm", said))
        spoken = self._norm("norm", said) if self.spec.method == "eagle3" else said
        return self._linear("lm_head", spoken), said

    def read_all(self, token_ids, features):
        """Returns: the output of the last slot."""
        said = [self.read(*pair) for pair in zip(token_ids, map(self.fuse, features), strict=True)]
        return said[-1]

    def _attention(self, x):
        spec, position = self.spec, len(self.keys)
        queries, keys, values = (
            self._linear(f"layers.0.self_attn.{each}_proj", x).view(-1, spec.head_dim) for each in "qkv"
        )
        self.keys.append([self._rotate(key, position) for key in keys])
        self.values.append(list(values))
        attended = []
        for head, query in enumerate(self._rotate(each, position) for each in queries):
            shared = head * spec.num_key_value_heads // spec.num_attention_heads
            scores = torch.stack([query @ key[shared] for key in self.keys]) / math.sqrt(spec.head_dim)
            weights = scores.softmax(0)
            attended.append(sum(w * value[shared] for w, value in zip(weights, self.values, strict=True)))
        return self._linear("layers.0.self_attn.o_proj", torch.cat(attended))

    def _rotate(self, x, position):
        scaling = self.spec.rope_scaling or {"factor": 1.0}
        half = self.spec.head_dim // 2
        rotated = torch.empty_like(x)
        for index in range(half):
            angle = position / scaling["factor"] * self.spec.rope_theta ** (-index / half)
            rotated[index] = x[index] * math.cos(angle) - x[index + half] * math.sin(angle)
            rotated[index + half] = x[index + half] * math.cos(angle) + x[index] * math.sin(angle)
        return rotated

    def _mlp(self, x):
        gate = self._linear("layers.0.mlp.gate_proj", x)
        return self._linear(
            "layers.0.mlp.down_proj", gate * torch.sigmoid(gate) * self._linear("layers.0.mlp.up_proj", x)
        )

    def _linear(self, name, x):
        bias = self.tensors.get(f"{name}.bias")
        return self.tensors[f"{name}.weight"] @ x + (0 if bias is None else bias)

    def _norm(self, name, x):
        return x / torch.sqrt((x * x).mean() + self.spec.rms_norm_eps) * self.tensors[f"{name}.weight"]


# ---------------------------------------------------------------- the head at work


def prefill(head, token_ids, features, chunks):
    """Lease a row and prefill committed tokens. Returns: the row, and the output of the last one."""
    row, start = head.cache.lease(), 0
    for size in chunks:
        stop = start + size
        segment = Segment(row, token_ids[start:stop], num_logits=int(stop == len(token_ids)))
        output = head.forward([segment], head.fuse(features[start:stop]))
        head.cache.append(row, size)
        start = stop
    return row, output


def grow(head, row, nodes, parents, root, layers):
    """Forward a tree draft step by draft step, as a drafter does. Returns: logits and hidden states of all nodes."""
    logits, hidden = [], []
    for first, last in layers:
        read = torch.stack([root if parent < 0 else hidden[parent] for parent in parents[first:last]])
        segment = Segment(row, nodes[:last], last - first, parents[:last], num_forwarded=first)
        output = head.forward([segment], read)
        logits += output.logits
        hidden += output.hidden
    return logits, hidden


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("chunks", [(33,), (20, 13), (1, 16, 15, 1), (17, 16)], ids=str)
def test_a_prompt_in_chunks_is_the_prompt_at_once_is_the_slow_reference(variant, chunks):
    weights = make_weights(variant)
    token_ids, features = tokens_of(33), features_of(weights, 33)
    _, output = prefill(make_running(weights), token_ids, features, chunks)
    logits, said = SlowHead(weights).read_all(token_ids, features)
    assert output.logits.shape == (1, weights.spec.draft_vocab_size)
    torch.testing.assert_close(output.logits[0], logits, **TOLERANCE)
    torch.testing.assert_close(output.hidden[0], said, **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_chain_of_nodes_reads_what_its_parents_said(variant):
    weights = make_weights(variant)
    token_ids, features, nodes = tokens_of(9), features_of(weights, 9), tokens_of(5, seed=1)
    head, slow = make_running(weights), SlowHead(weights)
    row, output = prefill(head, token_ids, features, (9,))
    logits, _ = grow(head, row, nodes, range(-1, 4), output.hidden[0], [(each, each + 1) for each in range(5)])
    said = slow.read_all(token_ids, features)[1]
    for node, found in zip(nodes, logits, strict=True):
        expected, said = slow.read(node, said)
        torch.testing.assert_close(found, expected, **TOLERANCE)
    assert head.cache.lengths[row] == 9  # a forward commits nothing


@pytest.mark.parametrize(
    "variant", [each for each in VARIANTS if each not in ("eagle without bias", "scaled positions")]
)
def test_a_trained_head_says_at_work_what_it_said_in_training(variant):
    spec = make_weights(variant).spec
    torch.manual_seed(1)
    trained, embedding = TrainedHead(spec), torch.randn(spec.vocab_size, spec.hidden_size)
    token_ids, features = tokens_of(12), features_of(make_weights(variant), 12)
    num_prompt, num_steps = 7, 3
    batch = Batch(
        token_ids=torch.tensor([token_ids]),
        features=features[None],
        last_hidden=torch.zeros(1, 5, spec.hidden_size),
        prompt_lengths=torch.tensor([num_prompt]),
        answer_lengths=torch.tensor([5]),
        has_end=torch.tensor([False]),
    )
    with torch.no_grad():
        said = unroll(trained, batch, embedding, num_steps)
    lm_head = torch.randn(spec.draft_vocab_size, spec.hidden_size)
    weights = trained.weights(None, torch.float32)
    weights.tensors.update({"embed_tokens.weight": embedding, "lm_head.weight": lm_head})
    head = make_running(weights)
    row, output = prefill(head, token_ids[1 : num_prompt + 1], features[:num_prompt], (num_prompt,))
    nodes = token_ids[num_prompt + 1 : num_prompt + num_steps]
    chain = [(each, each + 1) for each in range(len(nodes))]
    _, hidden = grow(head, row, nodes, range(-1, len(nodes) - 1), output.hidden[0], chain)
    for step, found in enumerate([output.hidden[0], *hidden]):
        torch.testing.assert_close(found, said[step][0, 0], **TOLERANCE)
    spoken = trained.spoken(said[0][0, 0])
    torch.testing.assert_close(output.logits[0], lm_head @ spoken.detach(), **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("prefix_len", [1, 6, 60])
def test_each_path_of_a_tree_is_that_path_alone(variant, prefix_len):
    weights = make_weights(variant)
    token_ids, features, nodes = tokens_of(prefix_len), features_of(weights, prefix_len), tokens_of(6, seed=2)
    head = make_running(weights)
    row, output = prefill(head, token_ids, features, (prefix_len,))
    logits, hidden = grow(head, row, nodes, TREE, output.hidden[0], LAYERS)
    slow = SlowHead(weights)
    said = slow.read_all(token_ids, features)
    paths = []
    for node, parent in enumerate(TREE):
        paths.append([*(paths[parent] if parent >= 0 else ()), node])
        alone, expected = deepcopy(slow), said
        for each in paths[node]:
            expected = alone.read(nodes[each], expected[1])
        torch.testing.assert_close(logits[node], expected[0], **TOLERANCE)
        torch.testing.assert_close(hidden[node], expected[1], **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_one_forward_do_not_see_each_other(variant):
    """A long prompt, a short one, one draft step of a tree, and the end of a prompt in a row that was used before."""
    weights = make_weights(variant)
    head = make_running(weights)
    head.cache.free(prefill(head, tokens_of(40, 9), features_of(weights, 40, 9), (40,))[0])
    told = [(tokens_of(num, num), features_of(weights, num, num)) for num in (30, 5, 7, 12)]
    long, short = head.cache.lease(), head.cache.lease()
    tree, root = prefill(head, *told[2], (7,))
    last = head.cache.lease()
    head.forward([Segment(last, told[3][0][:11], 0)], head.fuse(told[3][1][:11]))
    head.cache.append(last, 11)
    nodes = tokens_of(2, seed=4)
    segments = [
        Segment(long, told[0][0], 1),
        Segment(short, told[1][0], 0),
        Segment(tree, nodes, 2, (-1, -1)),
        Segment(last, told[3][0][11:], 1),
    ]
    hidden = [head.fuse(told[0][1]), head.fuse(told[1][1]), root.hidden.expand(2, -1), head.fuse(told[3][1][11:])]
    found = head.forward(segments, torch.cat(hidden))
    expected = [SlowHead(weights).read_all(*told[0])]
    for node in nodes:
        slow = SlowHead(weights)
        expected.append(slow.read(node, slow.read_all(*told[2])[1]))
    expected.append(SlowHead(weights).read_all(*told[3]))
    torch.testing.assert_close(found.logits, torch.stack([each[0] for each in expected]), **TOLERANCE)
    torch.testing.assert_close(found.hidden, torch.stack([each[1] for each in expected]), **TOLERANCE)


def test_tokens_whose_logits_nobody_wants_are_in_the_cache_all_the_same():
    weights = make_weights("eagle3")
    head, token_ids, features = make_running(weights), tokens_of(8), features_of(weights, 8)
    row = head.cache.lease()
    output = head.forward([Segment(row, token_ids[:7], 0)], head.fuse(features[:7]))
    assert (output.logits.shape, output.hidden.shape) == ((0, len(TOKEN_IDS)), (0, weights.spec.hidden_size))
    head.cache.append(row, 7)
    found = head.forward([Segment(row, token_ids[7:], 1)], head.fuse(features[7:])).logits[0]
    torch.testing.assert_close(found, SlowHead(weights).read_all(token_ids, features)[0], **TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_fuse_joins_the_layers_of_eagle3_and_leaves_the_feature_of_eagle(variant):
    weights = make_weights(variant)
    features = features_of(weights, 3).bfloat16()  # as they cross the wire
    fused, slow = make_running(weights).fuse(features), SlowHead(weights)
    assert fused.dtype == torch.float32
    torch.testing.assert_close(fused, torch.stack([slow.fuse(each) for each in features.float()]), **TOLERANCE)


def test_a_prompt_that_leaves_its_row_is_refused_and_nothing_is_written():
    head = make_running(weights := make_weights("eagle"))
    row, room = head.cache.lease(), head.cache.max_len
    with pytest.raises(CacheRangeError):
        head.forward([Segment(row, tokens_of(room + 1), 0)], features_of(weights, room + 1))
    assert not head.cache.keys[0].any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_says_nearly_the_same(dtype):
    weights = make_weights("eagle3")
    head = EagleHead(weights, make_config(dtype), "tiny", pack_dense, pack_dense)
    token_ids, features = tokens_of(30), features_of(weights, 30)
    _, output = prefill(head, token_ids, features, (30,))
    exact = SlowHead(weights).read_all(token_ids, features)[0]
    assert output.logits.dtype == getattr(torch, dtype)
    error = (output.logits[0].float() - exact).norm() / exact.norm()
    assert error < 0.03  # a few roundings of 2^-8 in a row


def test_what_a_step_reads_of_memory_does_not_count_the_embedding():
    weights = make_weights("eagle3")
    info = make_running(weights).info
    num_parameters = sum(tensor.numel() for tensor in weights.tensors.values())
    assert (info.num_parameters, info.vocab_size, info.max_model_len) == (num_parameters, 40, 64)
    assert info.num_weight_bytes == 4 * (num_parameters - weights.tensors["embed_tokens.weight"].numel())


@pytest.mark.parametrize(("given", "expected"), [(None, DEFAULT_MAX_MODEL_LEN), (9000, 9000), (200_000, 131_072)])
def test_a_row_is_as_long_as_was_asked_for_and_not_as_long_as_a_head_of_long_contexts_could_read(given, expected):
    weights = make_weights("eagle3")
    weights = replace(weights, spec=replace(weights.spec, max_position_embeddings=131_072))
    config = replace(make_config(num_rows=1), max_model_len=given)
    assert EagleHead(weights, config, "tiny", pack_dense, pack_dense).info.max_model_len == expected


def test_scaled_positions_are_those_of_the_head_and_not_of_the_runs_length():
    """yarn that does not say which length it was stretched from takes that of the head's own config.json."""
    weights = make_weights("eagle3")
    weights = replace(weights, spec=replace(weights.spec, rope_scaling={"rope_type": "yarn", "factor": 2.0}))
    given = [EagleHead(weights, make_config(max_model_len=each), "tiny", pack_dense, pack_dense) for each in (20, 64)]
    features = features_of(weights, 12)
    first, second = (slots_of(head, tokens_of(12), features) for head in given)
    assert torch.equal(first, second)


def test_rotary_settings_that_cannot_be_computed_are_one_sentence():
    weights = make_weights("eagle3")
    spec = replace(weights.spec, rope_theta=1.0, rope_scaling={"rope_type": "yarn", "factor": 2.0})
    with pytest.raises(ModelError, match="the rotary settings of 'tiny' cannot be used: "):
        make_running(replace(weights, spec=spec))


@pytest.mark.parametrize(
    "change", [{"rope_theta": 1e-300}, {"rope_scaling": {"rope_type": "linear", "factor": 1e-300}}], ids=str
)
def test_rotary_settings_that_overflow_are_refused(change):
    weights = make_weights("eagle3")
    with pytest.raises(ModelError, match="its table of rotary angles holds numbers that are NaN or infinite"):
        make_running(replace(weights, spec=replace(weights.spec, **change)))


def slots_of(head, token_ids, features):
    row = head.cache.lease()
    return head.forward([Segment(row, token_ids, len(token_ids))], head.fuse(features)).logits
