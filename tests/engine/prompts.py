"""Prompts of many kinds for the default model: questions, code, copies, lists, other scripts."""

PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that reverses a string.",
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "List five fruits as a JSON array.",
    "Explain why the sky is blue to a child.",
    "Translate to Spanish: I would like a cup of coffee.",
    "Summarise: The meeting is on Monday at nine. Bring the report. The report is due on Monday.",
    "Count from 1 to 20.",
    "Write a haiku about the sea.",
    "Was ist 12 mal 12? 你好!",
    "Say the alphabet backwards.",
    "Write three rhyming lines about a cat.",
    "def add(a, b):\n    return a + b\n\nWrite the same for subtract, multiply and divide.",
    "Name the planets of the solar system in order.",
    "Hi!",
    "Give me a recipe for pancakes as a numbered list.",
    "Who wrote Hamlet, and when?",
    "Correct the spelling: teh qick borwn fx.",
    "🙂🙃 What do these mean?",
    "Continue: 1, 1, 2, 3, 5, 8,",
)
