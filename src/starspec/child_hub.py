"""A hub in a process of its own, for a target in this one: it drafts while the target verifies.

As a thread it would share Python's lock with the target (ADR 32). It is the hub that `starspec up` starts, over the
same sockets.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import structlog

from starspec.config import HubConfig, HubProcess, ModelConfig, ProcessConfig, SampleMethod, SpeculativeConfig
from starspec.config.network import LOOPBACK
from starspec.engine.remote_drafts import RemoteDrafts
from starspec.engine.sequence import TargetSequence
from starspec.errors import StarspecError
from starspec.models.loading.progress import report
from starspec.policy.length.snapshot import LengthPolicy
from starspec.speculation.tree import DraftTree
from starspec.stats import TargetStats
from starspec.supervise.child import ChildState
from starspec.supervise.ports import PortReservations
from starspec.supervise.star import child_environment, hub_spec
from starspec.supervise.supervisor import Supervisor
from starspec.wire.messages import Hello
from starspec.wire.transports.zmq_target import ZmqTarget

NUM_BUSY: Final = 2  # target and hub compute at the same time
LEASE_S: Final = 86400.0  # an idle target says nothing, and the hub ends with it anyhow
CONNECT_S: Final = 30.0  # longest time from a hub that is ready to a connected target
MAX_DEATHS: Final = 3  # before a target is connected; more would only make its user wait
STEP_S: Final = 0.05  # between looks at a hub that is starting

log = structlog.get_logger()


class ChildHub:
    """The process. It is started again if it dies or hangs; meanwhile the target decodes plainly.

    Args:
        draft: the draft's model and how it runs.
        target: the target's model, whose vocabulary the draft must share.
    Raises: ConfigError or StarspecError if it cannot start.
    Effects: returns once the hub is ready. Warnings go to stderr from now on, unless structlog is configured.
    """

    def __init__(self, speculative: SpeculativeConfig, draft: ModelConfig, target: str) -> None:
        _log_to_stderr()
        with ExitStack() as ended_on_error:
            port = ended_on_error.enter_context(PortReservations()).reserve(LOOPBACK, 0)
            self.endpoint = f"tcp://{LOOPBACK}:{port}"
            config = HubProcess(
                hub=HubConfig(port=port, max_tags=max(HubConfig().max_tags, draft.num_rows), lease_s=LEASE_S),
                speculative=speculative,
                draft=draft,
                target=target,
                process=ProcessConfig(log_level="warning"),
            )
            environment = child_environment(os.environ, len(os.sched_getaffinity(0)), NUM_BUSY)
            self._supervisor = ended_on_error.enter_context(Supervisor([hub_spec(config, environment)], _say))
            self._supervisor.start()
            while not self._supervisor.is_ready:
                self._supervisor.step(STEP_S)
                self.check_start()
                report(f"hub: {self._supervisor.views[0].detail}")
            self._end = ended_on_error.pop_all()

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._supervisor.views[0].pid

    def look(self) -> None:
        """Log what the hub says, and start it again if it has died. Never blocks."""
        self._supervisor.step(0.0)

    def check_start(self) -> None:
        """For a target that is not connected yet. Raises: StarspecError if the process has died MAX_DEATHS times."""
        view = self._supervisor.views[0]
        num_deaths = view.num_restarts + 1
        if num_deaths >= MAX_DEATHS and view.state in (ChildState.WAITING, ChildState.GIVEN_UP):
            raise StarspecError(f"the draft's process ended {num_deaths} times before it was ready: {view.detail}")

    def stop(self) -> None:
        """End the process. Idempotent."""
        self._end.close()


class ChildHubDrafts(RemoteDrafts):
    """Drafts from a `ChildHub`, which ends with them.

    Args: as RemoteDrafts.
    Raises: StarspecError if the hub does not admit this target, or dies again and again.
    Effects: returns once it is connected.
    """

    def __init__(
        self, hub: ChildHub, hello: Hello, policy: LengthPolicy, stats: TargetStats, method: SampleMethod
    ) -> None:
        link = ZmqTarget(hub.endpoint, hello)
        super().__init__(link, policy, stats, method=method)
        self.child = hub
        give_up_s = time.monotonic() + CONNECT_S
        try:
            while not self.is_connected:
                if time.monotonic() > give_up_s:
                    raise StarspecError(f"the hub's process is ready, but not connected: {link.problem}")
                self.poll()
                hub.check_start()
                time.sleep(STEP_S)
        except BaseException:
            self.shutdown()
            raise

    def collect(self, batch: Sequence[TargetSequence]) -> list[DraftTree]:
        self.child.look()
        return super().collect(batch)

    def poll(self) -> None:
        self.child.look()
        super().poll()

    def shutdown(self) -> None:
        super().shutdown()
        self.child.stop()


def _log_to_stderr() -> None:
    """Log warnings only, on stderr: what a script prints is its own."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def _say(name: str, line: str) -> None:
    """Log what the process printed, or what happened to it."""
    log.warning("the hub's process reports", name=name, line=line)
