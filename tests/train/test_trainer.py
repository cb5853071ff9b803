"""A training that is stopped and goes on is the training that was never stopped."""

from __future__ import annotations

import signal
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from slow_head import slow_chain
from train_toys import HIDDEN, STAGE, texts_of

from starspec.errors import ConfigError
from starspec.train.plan import MAX_SEED, TrainPlan
from starspec.train.trainer import CE_BESIDE_FEATURES, Trainer
from starspec.train.work_folder import uninterrupted

PLAN = {"learning_rate": 3e-3, "warmup": 2, "bf16": False, "batch_tokens": 30, "save_every": 3}


class Stopped(Exception):
    """In place of Ctrl-C."""


def test_a_resumed_training_ends_with_the_same_weights(head, make_batch, embedding, tmp_path):
    batch = make_batch(head)
    first = {name: tensor.clone() for name, tensor in head.state_dict().items()}

    def trainer(folder):
        head.load_state_dict(first)
        return Trainer(
            head, texts_of(batch), embedding, embedding, TrainPlan(steps=8, **PLAN), tmp_path / folder, STAGE
        )

    whole = trainer("whole").run(lambda _: None, lambda: None)
    expected = {name: tensor.clone() for name, tensor in head.state_dict().items()}

    stopped = trainer("stopped")

    def stop_at_five():
        if stopped.progress.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        stopped.run(lambda _: None, stop_at_five)
    resumed = trainer("stopped").run(lambda _: None, lambda: None)

    assert whole.step == resumed.step == 8
    assert [loss for _, loss, _ in whole.losses] == [loss for _, loss, _ in resumed.losses]
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.fixture
def interruptible():
    """As a command in the foreground; a shell's background commands ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_where_interrupts_are_ignored_they_are(interruptible):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted(lambda: pytest.fail("there is nothing to save for")):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_second_interrupt_is_not_put_off(interruptible):
    came = 0

    def step():
        nonlocal came
        with uninterrupted(lambda: pytest.fail("half a step is not saved")):
            for came in (1, 2, 3):  # noqa: B007
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        step()
    assert came == 2


def test_an_interrupt_keeps_all_steps_up_to_it(interruptible, head, make_batch, embedding, tmp_path, monkeypatch):
    plan = TrainPlan(steps=8, **{**PLAN, "save_every": 100})
    trainer = partial(Trainer, head, texts_of(make_batch(head)), embedding, embedding, plan, tmp_path, STAGE)

    stopped = trainer()
    step = stopped._step

    def interrupted_step(batch):
        if stopped.progress.step == 4:
            signal.raise_signal(signal.SIGINT)
        step(batch)

    monkeypatch.setattr(stopped, "_step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(lambda _: None, lambda: None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = trainer()
    resumed.resume()
    assert resumed.progress.step == 5  # the one that was interrupted has ended


@pytest.mark.parametrize("where", ["reading", "saving", "advancing"])
def test_an_interrupt_between_steps_keeps_them(
    where, interruptible, head, make_batch, embedding, tmp_path, monkeypatch
):
    plan = TrainPlan(steps=8, **{**PLAN, "save_every": 4})
    trainer = partial(Trainer, head, texts_of(make_batch(head)), embedding, embedding, plan, tmp_path, STAGE)

    stopped = trainer()
    batches = stopped._batches

    def interrupt(now):
        if now == where and stopped.progress.step == 4:
            raise KeyboardInterrupt

    def interrupted_batches():
        for number, batch in enumerate(batches()):
            if where == "reading" and number == 4:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(stopped, "_batches", interrupted_batches)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(lambda _: interrupt("saving"), lambda: interrupt("advancing"))
    resumed = trainer()
    resumed.resume()
    assert resumed.progress.step == 4


def test_what_was_learnt_is_kept_though_measuring_it_fails(head, make_batch, embedding, tmp_path):
    plan = TrainPlan(steps=8, **{**PLAN, "save_every": 4})
    trainer = partial(Trainer, head, texts_of(make_batch(head)), embedding, embedding, plan, tmp_path, STAGE)

    def fail(_):
        raise ConfigError("the disk is full")

    with pytest.raises(ConfigError):
        trainer().run(fail, lambda: None)
    resumed = trainer()
    resumed.resume()
    assert resumed.progress.step == 4


def test_the_loss_falls(head, make_batch, embedding, tmp_path):
    plan = TrainPlan(steps=60, **PLAN)
    progress = Trainer(head, texts_of(make_batch(head)), embedding, embedding, plan, tmp_path, STAGE).run(
        lambda _: None, lambda: None
    )
    losses = [loss for _, loss, _ in progress.losses]
    assert sum(losses[-6:]) < 0.8 * sum(losses[:6])


@torch.no_grad()
def slow_loss(head, batch, embedding, lm_head, num_steps, decay):
    """The loss of one anchor and one step after the other: step k of anchor m is to say token m + 1 + k."""
    losses = [[] for _ in range(num_steps)]
    num_right = 0
    for line, (prompt, answer) in enumerate(zip(batch.prompt_lengths, batch.answer_lengths, strict=True)):
        num_said = int(answer) - int(batch.has_end[line])  # tokens after which the target said anything
        for place in range(num_said):
            steps = min(num_steps, num_said - place)
            anchor = int(prompt) - 1 + place
            chain = slow_chain(head, batch.features[line], batch.token_ids[line].tolist(), anchor, steps, embedding)
            for step, h in enumerate(chain):
                truth = batch.last_hidden[line, place + step]
                wanted, said = lm_head @ truth, lm_head @ head.spoken(h)
                loss = F.cross_entropy(said, wanted.softmax(0))
                if head.spec.method == "eagle":
                    loss = F.smooth_l1_loss(h, truth) + CE_BESIDE_FEATURES * loss
                losses[step].append(float(loss))
                num_right += step == 0 and int(said.argmax()) == int(wanted.argmax())
    weights = [decay**step for step in range(num_steps)]
    means = [sum(each) / len(each) for each in losses]
    total = sum(weight * mean for weight, mean in zip(weights, means, strict=True)) / sum(weights)
    return total, num_right / len(losses[0]), len(losses[0])


def test_the_loss_is_that_of_one_anchor_and_one_step_after_the_other(head, make_batch, embedding, tmp_path):
    batch = make_batch(head)
    batch.has_end[1] = True
    lm_head = torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(9))
    plan = TrainPlan(steps=1, ttt_steps=3, step_decay=0.7, **PLAN)
    loss, share_right, num = Trainer(head, texts_of(batch), embedding, lm_head, plan, tmp_path, STAGE).loss(batch)
    expected = slow_loss(head, batch, embedding, lm_head, 4, 0.7)
    # float32: only the order of sums differs
    assert (float(loss.detach()), share_right, num) == pytest.approx(expected, rel=1e-4)


def test_what_follows_the_end_of_a_text_is_not_learnt(make_batch, head):
    batch = make_batch(head, (2,), (5,))
    assert batch.counts(0).tolist() == [[True] * 5]
    assert batch.counts(2).tolist() == [[True, True, True, False, False]]
    batch.has_end[0] = True  # the target's word after it means nothing
    assert batch.counts(0).tolist() == [[True, True, True, True, False]]


def test_what_is_learnt_may_begin_within_the_prompt(make_batch, head):
    batch = make_batch(head, (9, 6), (4, 8))
    texts = [text.learnt_from(5) for text in texts_of(batch)]
    assert [(text.prompt_length, text.answer_length) for text in texts] == [(5, 8), (5, 9)]
    assert all(len(text.last_hidden) == text.answer_length for text in texts)
    assert [len(text) for text in texts] == [len(text) for text in texts_of(batch)]
    assert [text.learnt_from(99).prompt_length for text in texts_of(batch)] == [9, 6]


def test_a_training_has_an_end(head, embedding, tmp_path):
    with pytest.raises(ConfigError, match="steps or minutes"):
        Trainer(head, [], embedding, embedding, TrainPlan(), tmp_path, STAGE)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_that_torch_does_not_take_is_refused_before_the_training(seed):
    with pytest.raises(ConfigError, match=f"but is {seed}"):
        TrainPlan(steps=1, seed=seed)


def test_the_largest_seed_is_taken_by_torch():
    torch.manual_seed(TrainPlan(steps=1, seed=MAX_SEED).seed)
