"""Speculative decoding engine: models, KV caches, drafters, verification, rounds. Independent of any interface.

    from specchat.engine import Engine, EngineConfig, Request

Importing this package loads neither torch nor transformers; the engine's thread does.
"""

from specchat.engine.config import CACHE_TYPES, DEVICES, DTYPES, EngineConfig, home_folder, models_folder
from specchat.engine.drafters.other_chats import OtherChats
from specchat.engine.engine import Engine
from specchat.engine.errors import EngineError, check_system
from specchat.engine.events import (
    MOST_DRAFTED,
    Admitted,
    CachedText,
    CacheUse,
    Captured,
    Counted,
    Died,
    Event,
    Finished,
    FinishReason,
    Given,
    Loading,
    Measured,
    Notice,
    Outbox,
    Prefilled,
    Ready,
    Speedup,
    Step,
    Thinking,
    Totals,
)
from specchat.engine.files import FILE_MODE, create_text, local_path, make_folder, make_private, replacing
from specchat.engine.kernels.cores import SpareCore, spare_core, usable_cores
from specchat.engine.lanes.engine import LaneEngine, LaneReady
from specchat.engine.lanes.order import CLOCKS, Order
from specchat.engine.progress import Progress, size_text
from specchat.engine.registry import DRAFTERS, unknown_drafter
from specchat.engine.request import (
    ANY_TOOL,
    JSON_OBJECT,
    MAX_GAMMA,
    THINKING_WORDS,
    WHEN_FULL,
    Constraint,
    ConstraintKind,
    Message,
    MessagePart,
    PartKind,
    Request,
    Tool,
    gamma_text,
    message_parts,
    of_response_format,
    of_schema,
    one_of,
    parse_gamma,
    text_of,
)
from specchat.engine.round import Call, Candidate, Detail, Fate, Proposer, Refused, Round, Token, TokenScore
from specchat.engine.sequence.grammar import check_constraint
from specchat.engine.sequence.prompt import left_out, without
from specchat.engine.sequence.reply_formats import marks_of, parser_of, split_reply
from specchat.engine.sequence.template_traits import tool_of
from specchat.engine.settings import (
    DRAFTING,
    MACHINE,
    MODEL,
    ONE_OR_MORE,
    SAMPLING,
    SAMPLING_NUMBERS,
    TOPICS,
    Applies,
    Sampling,
    Setting,
    entry,
    setting,
    settings_of,
)
from specchat.engine.stats.metrics import WINDOW_S, Metrics
from specchat.engine.stats.speedup import Baseline, SpeedupTracker, expected_tokens, operations, optimal_gamma, speedup
from specchat.engine.threads import JoinedThread, preload_torch
from specchat.engine.tools.lane_figures import Comparison, LaneTally
from specchat.engine.trace import Record, TraceWriter, from_json, read_trace, to_json
