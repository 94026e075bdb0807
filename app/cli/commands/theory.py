"""`specchat theory`: predictions of Leviathan et al. 2023, section 3, for an acceptance rate α and a cost ratio c."""

import json
from typing import Annotated

from specchat.app.cli import options
from specchat.app.cli.options import opt
from specchat.app.errors import UsageError
from specchat.engine import MAX_GAMMA, expected_tokens, operations, optimal_gamma, speedup


def theory(
    alpha: Annotated[float, opt("--alpha", "A", "Chance that a drafted token is accepted, 0 to 1.")],
    c: Annotated[float, opt("--c", "C", "Time of a draft step / time of a pass of the target.")] = 0.0,
    as_json: options.Json = False,
) -> None:
    """Print the expected tokens and the speedup of each draft length γ, and the best one."""
    if not 0 <= alpha <= 1:
        raise UsageError(f"--alpha is {alpha:g}: it must be from 0 to 1")
    if not 0 <= c < float("inf"):
        raise UsageError(f"--c is {c:g}: it must be a number from 0")
    best = optimal_gamma(alpha, c, MAX_GAMMA)
    rows = [
        {"gamma": gamma, "tokens": expected_tokens(alpha, gamma), "speedup": speedup(alpha, gamma, c)}
        | {"operations": operations(alpha, gamma)}
        for gamma in range(MAX_GAMMA + 1)
    ]
    if as_json:
        print(json.dumps({"alpha": alpha, "c": c, "optimal_gamma": best, "rows": rows}, indent=2))
        return
    print(f"α {alpha:g} · c {c:g}: Leviathan et al. 2023, equation 1, Theorems 3.8 and 3.11\n")
    print(" γ   tokens per pass   speedup   operations of the target per token")
    for row in rows:
        mark = "  ◂ best" if row["gamma"] == best else ""
        print(f"{row['gamma']:>2}{row['tokens']:>18.2f}{row['speedup']:>9.2f}×{row['operations']:>12.2f}×{mark}")
    print(f"\n{_verdict(alpha, c, best)}")


def _verdict(alpha: float, c: float, best: int) -> str:
    if best == 0:
        return "Drafting does not pay: α is not above c (Corollary 3.9)."
    more = f"; γ above {MAX_GAMMA} would give more" if best == MAX_GAMMA else ""
    return f"Best is γ {best}: {speedup(alpha, best, c):.2f}× as fast as one token per pass{more}."
