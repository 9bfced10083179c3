"""The causes that experiments look for, in the order in which the tree tries them."""

from megarl.drift.diagnosis.causes.attention_mask import AttentionMask
from megarl.drift.diagnosis.causes.cause import Cause
from megarl.drift.diagnosis.causes.chat_template import ChatTemplate
from megarl.drift.diagnosis.causes.dtype import WholeDtype
from megarl.drift.diagnosis.causes.head_precision import HeadPrecision
from megarl.drift.diagnosis.causes.left_padding import LeftPadding
from megarl.drift.diagnosis.causes.off_by_one import OffByOne
from megarl.drift.diagnosis.causes.prefix_cache import PrefixCache
from megarl.drift.diagnosis.causes.quantised import FP8, INT8
from megarl.drift.diagnosis.causes.raw_log_probs import RawLogProbs
from megarl.drift.diagnosis.causes.residual_precision import ResidualPrecision
from megarl.drift.diagnosis.causes.rope import Rope
from megarl.drift.diagnosis.causes.routing import Routing
from megarl.drift.diagnosis.causes.stale_weights import StaleWeights
from megarl.drift.diagnosis.causes.stop_token import StopToken
from megarl.drift.diagnosis.causes.temperature import Temperature
from megarl.drift.diagnosis.causes.tensor import Tensors
from megarl.drift.diagnosis.causes.tied_head import TiedHead
from megarl.drift.diagnosis.causes.truncation import Truncation

CAUSES: tuple[Cause, ...] = (
    OffByOne(),
    RawLogProbs(),
    Temperature(),
    Truncation(),
    StopToken(),
    ChatTemplate(),
    LeftPadding(),
    AttentionMask(),
    StaleWeights(),
    PrefixCache(),
    TiedHead(),
    Rope(),
    Routing(),
    WholeDtype(),
    HeadPrecision(),
    ResidualPrecision(),
    FP8,
    INT8,
)
"""What is read is looked at before what is computed with, and that before how exactly it is computed."""

LAST_RESORTS: tuple[Cause, ...] = (Tensors(),)
"""Tried where none of these explains a drift above the rounding of one side: they take a pass for each tensor."""

__all__ = ["CAUSES", "LAST_RESORTS", "Cause"]
