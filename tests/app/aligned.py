"""An alignment of two drafters on the first reply of the trace `chat`, as the default model made it."""

import json
from pathlib import Path

from specchat.engine.tools.evaluate import Alignment
from specchat.engine.tools.evaluate.drafters import Figures
from specchat.engine.tools.evaluate.rounds import Place

FILE = Path(__file__).parent / "alignment.json"


def alignment() -> Alignment:
    """What `combined` and `suffix` had, at γ 4."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    one, other = (Figures(**figures) for figures in stored["figures"])
    ours, theirs = (
        [Place(depth, tuple(offered), beta) for depth, offered, beta in places] for places in stored["places"]
    )
    names = {int(token): name for token, name in stored["names"].items()}
    return Alignment(stored["temperature"], (one, other), (ours, theirs), names)
