"""Outlier steps, finite but far above their baseline: skipped or clipped.

One of these belongs to every guarded optimizer. It asks the baseline in the step itself, on the
host or on the device, and clips there; what that means for the run is decided later, by
``Recovery``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import Settings
from ..policy import Policy
from ..probes.baseline import APART, NORM, Baseline
from ..probes.comparable import Comparability
from ..probes.device_baseline import JudgedStep, Terms, fresh_state, learn_anew
from ..probes.gradients import DeviceReading
from ..probes.step_record import StepRecord

# After an explosion norms are clipped until this many steps have been ordinary.
_ORDINARY_STEPS = 100


class Outliers:
    """Judges and clips the steps of one optimizer.

    Args:
        settings: of the run.
        policy: says whether an explosion is skipped, and clipped from then on.
        comparability: says whether the losses of this run can be compared. Where they cannot, a
            finite step is skipped only if the user asked for that.
    """

    def __init__(self, settings: Settings, policy: Policy, comparability: Comparability) -> None:
        self.detect = settings.spike.detect
        self._clip = policy.does("OPT002", "clip")
        self._skip = policy.does("OPT002", "skip")
        self._always = policy.rule("OPT002").asked
        self._comparability = comparability
        self._asked = settings.clip
        self._warmup = settings.spike.warmup
        self.baseline = Baseline(self._warmup)
        self._state: Tensor | None = None
        self._question: tuple[tuple[bool, ...], JudgedStep | None] = (), None
        self._ordinary_steps = _ORDINARY_STEPS
        self._alone = True
        self.agreed_to_clip = False
        """Whether several ranks have agreed to clip because of an explosion."""

    @property
    def exploding(self) -> bool:
        """Whether an explosion was not long ago."""
        return self._ordinary_steps < _ORDINARY_STEPS

    @property
    def clipping(self) -> bool:
        """Whether norms are being clipped by themselves because of an explosion."""
        # A device tells each rank at another time: all must begin with the same step.
        return self._ordinary_steps < _ORDINARY_STEPS if self._alone else self.agreed_to_clip

    @property
    def _skips(self) -> bool:
        """Whether a step with an outlier norm is skipped at present."""
        comparable = self._comparability
        may = comparable.may_skip if self._alone else comparable.agreed
        return self._skip and (self._always or may)

    @property
    def _sized(self) -> bool:
        """Whether the global norm limits the step."""
        return self._asked.norm is not None or self._asked.adaptive or self.clipping

    # ------------------------------------------------------------------ on the host

    @property
    def passive(self) -> bool:
        """Whether an ordinary step is only observed: nothing is clipped."""
        asked = self._asked
        return self.detect and not self._sized and asked.per_parameter is None is asked.value

    def judge(
        self,
        record: StepRecord,
        grads: list[Tensor],
        *,
        alone: bool,
        clipped: bool,
        scale: float,
        may_skip: bool,
        parts: Sequence[int] | None = None,
    ) -> None:
        """Judge a step that is known to be finite; clip it when it is taken.

        Args:
            record: of the step; its row has loss and norm, without a scale.
            grads: its gradients.
            alone: whether there is one rank, which may trust its own loss.
            clipped: whether the user has clipped since the norm was measured.
            scale: the scale of a GradScaler on the gradients.
            may_skip: whether steps of this optimizer can be skipped.
            parts: of which parameters, where these are parts of gradients that are spread over
                ranks; the norms in the record are those of the whole.
        """
        row = record.row
        self._alone = alone
        if self.detect:
            bits = self.baseline.judge(
                row["loss"],
                row["grad_norm"],
                loss_counts=alone,
                norm_counts=not clipped,
                may_skip=self._skips and may_skip,
            )
            record.see_baseline(bits, *self.baseline.numbers)
        if record.extreme:
            return
        factor = 1.0
        # What norm the user's clipping has left of a whole gradient nobody knows here.
        unknown = clipped and parts is not None
        if self._sized and may_skip and not unknown:
            norm = float(_norm(grads)) / scale if clipped else row["grad_norm"]
            factor = min(1.0, self._most() / (norm + 1e-6))
            if factor < 1.0 and grads:
                torch._foreach_mul_(grads, factor)
        row["clip"] = factor
        if may_skip:
            norms = None
            if parts is not None and not clipped and record.reading is not None:
                norms = torch.as_tensor(record.reading.norms)[list(parts)] * factor
            self._clip_each(grads, scale, norms, may_measure=parts is None)

    def _most(self) -> float:
        limit = self._asked.norm if self._asked.norm is not None else math.inf
        return min(limit, self.baseline.clip_at) if self._asked.adaptive or self.clipping else limit

    # ------------------------------------------------------------------ on a device

    def question(
        self,
        device: torch.device,
        *,
        alone: bool,
        clipped: bool,
        may_skip: bool,
        scale: Tensor | None,
    ) -> JudgedStep | None:
        """Device computation for this step; None when nothing is to be judged."""
        self._alone = alone
        if not self.detect and not self._sized:
            return None
        if self._state is None or self._state.device != device:
            self._state = fresh_state(device)
        # ``_skips`` and ``clipping``, written out: this is asked in every step.
        comparable = self._comparability
        trusted = self._always or (comparable.may_skip if alone else comparable.agreed)
        may = self._skip and trusted and may_skip and self.detect
        clipping = self._ordinary_steps < _ORDINARY_STEPS if alone else self.agreed_to_clip
        about = alone, clipped, may, self._asked.adaptive or clipping
        # Asked in every step, mostly with the same words.
        last, question = self._question
        known = question is not None and question.state is self._state and question.scale is scale
        if question is None or not known or last != about:
            norm = self._asked.norm
            terms = Terms(
                warmup=self._warmup,
                loss_counts=alone,
                norm_counts=not clipped,
                may_skip=may,
                adaptive=about[3],
                clip=math.inf if norm is None else norm,
            )
            question = JudgedStep(self._state, terms, scale)
            self._question = about, question
        return question

    def clip_on_device(
        self,
        measured: DeviceReading,
        grads: list[Tensor],
        scale: Tensor | None,
        *,
        clipped: bool,
        parts: Sequence[int] | None = None,
    ) -> None:
        """Make gradients smaller as the answer says; nothing is read."""
        if not grads:
            return
        unknown = clipped and parts is not None
        if self._sized and measured.factor is not None and not unknown:
            factor = measured.factor[0]
            if clipped:
                # The answer is about norms that the user has clipped since.
                limit = self._asked.norm
                if limit is None:
                    return
                most = limit if scale is None else limit * scale.reshape(())
                factor = (most / (_norm(grads) + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(grads, factor.to(grads[0].device, non_blocking=True))
        norms = None
        if self._asked.per_parameter is not None and parts is not None and not clipped:
            assert isinstance(measured.row, Tensor)
            norms = measured.row[: measured.tensors]
            if len(parts) != measured.tensors:
                norms = torch.stack([norms[i] for i in parts])
            if self._sized and measured.factor is not None:
                norms = norms * measured.factor[0]
            if scale is not None:
                norms = norms / scale.reshape(())
        self._clip_each(grads, scale, norms, may_measure=parts is None)

    # ------------------------------------------------------------------ both

    def _clip_each(
        self,
        grads: list[Tensor],
        scale: Tensor | float | None,
        norms: Tensor | None,
        *,
        may_measure: bool,
    ) -> None:
        """Clip each gradient; its norm is in ``norms``, or measured where that is right."""
        each, value = self._asked.per_parameter, self._asked.value
        if norms is None and not may_measure:
            each = None
        if (each is None and value is None) or not grads:
            return
        scaled = scale is not None and (isinstance(scale, Tensor) or scale != 1.0)
        by = torch.as_tensor(scale) if scaled else None
        if by is not None:
            torch._foreach_div_(grads, by)
        if each is not None:
            factors = torch._foreach_norm(grads, 2, torch.float32) if norms is None else []
            if norms is not None:
                factors = list(norms.to(torch.float32, copy=True).unbind())
            torch._foreach_add_(factors, 1e-6)
            torch._foreach_reciprocal_(factors)
            torch._foreach_mul_(factors, each)
            torch._foreach_clamp_max_(factors, 1.0)
            torch._foreach_mul_(grads, factors)
        if value is not None:
            torch._foreach_clamp_max_(grads, value)
            torch._foreach_clamp_min_(grads, -value)
        if by is not None:
            torch._foreach_mul_(grads, by)

    def known(self, record: StepRecord) -> bool:
        """A step is over and its numbers are known; True when an explosion begins or is over."""
        was = self.exploding
        if record.outlier:
            self._comparability.outlier(record.step)
        if record.extreme and self._clip:
            self._ordinary_steps = 0
        elif record.outlier & NORM and self._ordinary_steps > APART:
            self._ordinary_steps = (
                _ORDINARY_STEPS  # such norms are normal in this run: do not clip them
            )
        elif was:
            self._ordinary_steps += 1
        return was != self.exploding

    def state(self) -> dict[str, Any]:
        """All that its next decisions depend on, as plain data and a tensor of its own."""
        known = {"calm": self._ordinary_steps, "baseline": self.baseline.state()}
        return known if self._state is None else {**known, "device": self._state.clone()}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Go on from what ``state`` gave, with gradients on this device."""
        self._ordinary_steps = state["calm"]
        self.baseline.restore(state["baseline"])
        if "device" in state:
            self._state = state["device"].to(device)

    def forget(self) -> None:
        """Something else is learned from here on: nothing is known of it."""
        self.baseline = Baseline(self._warmup)
        if self._state is not None:
            self._state.zero_()

    def learn_anew(self) -> None:
        """The loss has a new level."""
        self.baseline.learn_anew()
        if self._state is not None:
            learn_anew(self._state)


def _norm(grads: list[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2, torch.float32)))
