"""Every command answers a mistake by one sentence on stderr and exit code 2, before a model is loaded if it can."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.app.paths import database_file, settings_file
from tests.app.cli.commands.command import command

MISTAKES = {
    "--gama 3": "No such option: --gama",
    "--drafter none --gamma 4": "--gamma 4 contradicts --drafter none",
    "--gamma 3 ask hi": "put --gamma after the command: specchat ask --gamma …",
    "--theme pink": "theme 'pink' is not known: choose one of specchat-dark",
    "--left none": "--left goes with two lanes",
    "--exact": "--exact goes with two lanes",
    "--side-by-side --right turbo": "which is not a drafter",
    "--side-by-side --order both": "--order 'both' is not known: choose interleaved or sequential",
    "--side-by-side ask hi": "put --side-by-side after the command",
    "--theme nord replay x": "put --theme after the command",
    "aks hi": "No such command 'aks'. Did you mean 'ask'?",
    "hello": "No such command 'hello' (to ask a question: specchat ask \"…\")",
    "models": "Missing command",
    "replay": "Missing argument",
    "ask": "there is nothing to ask",
    "ask ' \n\t\0\x1b'": "there is nothing to ask",
    "replay EMPTY": "holds no records",
    "replay TRACE": "is not a terminal",
    "ask hi there": "unexpected extra argument",
    "ask hi --gamma many": "'--gamma': 'many' is neither a whole number nor auto",
    "ask hi --temperature -1": "temperature is -1",
    "ask hi --target ' '": "target is empty",
    "ask hi --dtype int3": "dtype 'int3' is not known: choose one of auto",
    "ask hi --logit-bias the=5": "'the=5' is not a token id, = and a number",
    "ask hi --logit-bias 99999=1 --target TINY": "logit-bias names token 99999 and the model has",
    "ask hi --target no-model --trace new.jsonl": "no-model",
    "ask hi --target TINY --trace new.jsonl --drafter bigram": "bigram",
    "ask hi --target TINY --trace TALK": "talk.jsonl exists already",
    "ask hi --target TINY --trace no/trace.jsonl": "cannot be written",
    "ask hi --continue": "there are no chats yet",
    "ask hi --chat x": "there are no chats yet",
    "ask hi --chat x --continue": "name two chats",
    "ask hi --file missing.txt": "missing.txt cannot be read",
    "ask hi --template none": "template 'none' is not known",
    "ask hi --var a=b": "goes with a template",
    "ask hi --max-tokens 0.5": "max-tokens is '0.5': it must be a whole number at least 1",
    "ask hi --temperature hot": "temperature is 'hot': it must be a number from 0 (greedy) to 5",
    "bench --batch x": "batch is 'x': it must be a whole number",
    "ask hi --beams 1": "beams is 1: it must be from 2 to 16",
    "ask hi --beams 4 --temperature 0.7": "temperature 0.7 draws texts by chance: set it to 0, or",
    "ask hi --beams 4 --json-object": "beams follow no JSON schema, regular expression, grammar or choice",
    "ask hi --beams 4 --logit-bias 5=1": "leave penalties and logit biases out",
    "ask hi --beams 4 --lenience 0.5": "leave lenience out",
    "ask hi --beams 4 --stop fox": "leave stop strings out",
    "ask hi --beams 4 --drafter ngram": "the drafter ngram cannot draft for each beam: choose one of auto, none, model",
    "ask hi --beams 4 --drafter model": "drafter model needs a draft model: name one with --draft",
    "ask hi --beams 4 --save": "--save does not go with --beams",
    "ask hi --beams 4 --trace x.jsonl": "--trace does not go with --beams",
    "ask hi --beams 4 --continue": "--continue does not go with --beams",
    "ask hi --beams 4 --attach http://localhost:1": "--attach",
    "ask hi --attach ''": "--attach is empty: give the address of a server",
    "compare x --attach ''": "--attach is empty: give the address of a server",
    "bench --gamma -1": "gamma is -1",
    "bench --gamma many": "gamma is 'many'",
    "bench --batch 0": "batch is 0",
    "bench --batch 1 --batch 4 --slots 2": "slots is 2: a batch of 4 needs as many",
    "bench --passes 0": "passes is 0",
    "bench --threads 0": "threads is 0",
    "bench --prompt-tokens 1": "prompt-tokens is 1",
    "bench --max-tokens 1": "max-tokens is 1",
    "bench --peer vllm": "peer 'vllm' is not known",
    "bench --peer llama.cpp --llama-cpp /nowhere": "there is no folder /nowhere: --llama-cpp takes the folder",
    "bench --peer loop --crossover": "--peer does not go with --crossover",
    "bench --synthetic 2": "agreement is 2",
    "bench --synthetic 0.5 --shape huge": "shape 'huge' is not known",
    "bench --synthetic 0.5 --shape llama-3.2-3b/smollm2-135m": "different vocabularies",
    "bench --synthetic 0.5 --target x": "--target contradicts --synthetic",
    "bench --synthetic 0.5 --draft x": "--draft contradicts --synthetic",
    "bench --synthetic 0.5 --peer transformers": "--peer contradicts --synthetic",
    "bench --synthetic 0.5 --shape tiny --context 8": "the context holds 8",
    "bench --shape tiny": "--shape goes with --synthetic",
    "bench --target /nowhere/at/all": "there is no file or folder /nowhere/at/all",
    "bench --target TINY --drafter model": "it needs --draft",
    "bench --target TINY --drafter none --crossover": "name one with --drafter",
    "bench --drafts suffix,copy": "--drafts and --picture go with --crossover",
    "bench --crossover --drafts suffix --drafter head": "--drafts contradicts --draft, --drafter",
    "bench --crossover --drafts suffix --picture x.png": "give it a name that ends in .svg",
    "bench --beams 4 --peer loop": "--peer does not go with --beams",
    "bench --beams 4 --batch 2": "--batch does not go with --beams",
    "bench --beams 4 --drafter ngram --drafter head": "--beams measures one drafter",
    "bench --beams 4 --drafter head": "the drafter head cannot draft for each beam",
    "bench --beams 4 --drafter none": "leave gamma 0 and drafter none out",
    "bench --beams 4 --gamma x": "gamma is 'x': it must be a whole number or auto",
    "bench --beams 4": "name one with --draft",
    "verify --temperature 0": "sampling needs one above 0",
    "verify --samples 5": "samples is 5: it must be at least 20",
    "verify --contexts 0": "contexts is 0",
    "compare": "there is nothing to ask",
    "compare '  '": "the prompt is empty",
    "compare x --left turbo": "begins with 'turbo', which is not a drafter",
    "compare x --right ngram:gamma=many": "gamma 'many': it must be a whole number or auto",
    "compare x --right ngram:gamma=99": "gamma is 99",
    "compare x --right ngram:speed=9": "'speed=9', which is not one of gamma=, draft=, target=",
    "compare x --right none:gamma=4": "none drafts nothing",
    "compare x --right model": "drafter model needs a draft model",
    "compare x --right merged:draft=a": "drafter merged needs several draft models",
    "compare x --right merged:draft=a,target=b,target=c,draft=d": "has target twice",
    "compare x --order random": "--order 'random' is not known",
    "compare x --repeat 0": "--repeat is 0",
    "compare x --file y": "both a prompt and --file are given",
    "compare --file TEXT": "it needs a list of texts under the key prompts",
    "compare --file /nowhere/prompts": "/nowhere/prompts cannot be read",
    "distill --target no-model --out x --prompts BLANK": "blank.txt has no prompt",
    "distill --target no-model --out x --text y": "y holds no text that specchat distill wrote",
    "distill --target no-model --out x --from nowhere": "there is no folder nowhere to begin from",
    "distill --target no-model --out talk.jsonl/x": "distilling cannot write to",
    "distill --target no-model --out x --kind bigram --text nowhere.txt": "nowhere.txt cannot be read",
    "evaluate nowhere.json --target no-model --against here": "nowhere.json cannot be read",
    "evaluate TALK --against x --drafter suffix": "--drafter contradicts --against",
    "evaluate TALK --against-dtype float32 --gamma 4": "--gamma contradicts --against",
    "evaluate TALK --against-dtype float33": "dtype 'float33' is not known",
    "evaluate TALK --json --csv": "--json and --csv contradict each other",
    "serve --host 0.0.0.0": "--host 0.0.0.0 lets other machines in: give --api-key (or SPECCHAT_API_KEY) as well",
    "serve --host example.org": "--host example.org lets other machines in",
    "serve --api-key schlüssel": "--api-key has characters that no header can carry",
    "serve --host 256.1.1.1 --api-key k": "256.1.1.1:8000 cannot be served",
    "serve --slots 0": "slots is 0: it must be from 1 to 1024",
    "web --host 0.0.0.0": "--host 0.0.0.0 lets other machines in: give --api-key (or SPECCHAT_WEB_KEY) as well",
    "web --temperature -1": "temperature is -1",
    "web --slots 2 --attach x": "--slots contradicts --attach",
    "theory": "Missing option '--alpha'",
    "theory --alpha 1.5": "--alpha is 1.5: it must be from 0 to 1",
    "theory --alpha 0.5 --c -1": "--c is -1: it must be a number from 0",
    "theory --alpha 0.5 --c inf": "--c is inf: it must be a number from 0",
    "models pull smolm2-135m": "did you mean smollm2-135m",
    "screenshot nothing.jsonl --out a.svg": "nothing.jsonl cannot be read as a trace",
    "screenshot TRACE": "Missing option '--out'",
    "screenshot TRACE --out TALK": "exists already: name another file",
    "screenshot TRACE --out no/such/folder.svg": "/no/such for the picture folder.svg",
    "screenshot TRACE --out a.png": "the picture a.png would be SVG: give it a name that ends in .svg",
    f"screenshot TRACE --out {'x' * 300}.svg": "x.svg cannot be written: File name too long",
    "screenshot TRACE --out a.svg --size wide": "--size wide is not understood: give columns x lines",
    "export": "there are no chats yet",
    "export --out chat.pdf": "the ending of chat.pdf is not understood: choose --format md, json, svg, html",
    "export --trace TRACE --format svg": "a trace cannot be exported as svg",
    "export --html --perfetto": "choose one format",
    "export Rivers --trace TRACE": "two things to export: name one",
    "export --format pdf": "--format pdf is not understood: choose --format md, json, svg, html",
}
SLOW = pytest.param("bench --synthetic 0.5 --shape tiny --context 8", marks=pytest.mark.slow)
TRACE = Path(__file__).parents[3] / "assets" / "traces" / "code.jsonl"


@pytest.mark.parametrize("mistyped", [*(each for each in MISTAKES if each not in SLOW.values), SLOW])
def test_a_mistake_is_answered_by_one_sentence(
    mistyped: str, tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    files = {
        "TALK": ("talk.jsonl", '{"messages": [{"role": "user", "content": "hi"}]}'), "BLANK": ("blank.txt", ""),
        "EMPTY": ("empty.jsonl", '{"record": "trace", "version": 1}\n'), "TEXT": ("text.json", '{"prompts": "hello"}'),
    }  # fmt: skip
    words = {"TRACE": TRACE} | {word: tmp_path / name for word, (name, _) in files.items()}
    for name, text in files.values():
        (tmp_path / name).write_text(text)
    if "TINY" in mistyped:
        words["TINY"] = tiny_model()
    done = command(*(words.get(word, word) for word in shlex.split(mistyped)), terminal=mistyped.startswith("--"))
    assert MISTAKES[mistyped] in done.sentence
    found = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "home"}
    assert found == dict(files.values()), "nothing is written"


@pytest.mark.parametrize(
    ("entered", "damaged"),
    [
        ("ask hi --target /nowhere", settings_file), ("ask hi --continue", database_file),
        ("ask hi --save --target /nowhere", database_file),
        ("distill --out x --chats --from y --target /nowhere", database_file), ("export", database_file),
        (f"screenshot {TRACE} --out a.svg", settings_file), ("web --host 256.1.1.1 --api-key k", settings_file),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named(
    entered: str, damaged: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = damaged()
    file.parent.mkdir(parents=True)
    file.write_text("not of specchat")
    done = f"it was kept as {file.name}.broken-1" if damaged is database_file else f"{file} is not used until"
    assert done in command(*shlex.split(entered)).err
