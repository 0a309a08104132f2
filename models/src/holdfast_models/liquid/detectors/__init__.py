"""Detectors of liquid networks: faults that the loss alone does not show; never imports torch.

They read what the trainer records (``numbers`` every 50 steps, ``validation``) and are silent in
runs of anything else. Most causal first.
"""

from .constant_spikes import ConstantSpikes
from .forgetting import Forgetting
from .idle_plasticity import IdlePlasticity
from .short_time_constants import ShortTimeConstants
from .still_weights import StillWeights

DETECTORS = (ConstantSpikes, ShortTimeConstants, IdlePlasticity, StillWeights, Forgetting)
