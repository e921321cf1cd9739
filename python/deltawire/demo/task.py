"""What the policy is asked, and how its answers are scored.

Both tasks have a *verifiable* reward: a few checks on the text alone, no judge and no
second model. Each gives partial credit, so that the completions of one group differ and
group-normalised advantages carry a signal.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True)
class Problem:
    """One prompt: an instruction, a question, and the word the checks look for."""

    system: str
    question: str
    key: str


class Task(Protocol):
    """A stream of problems and their reward."""

    def problems(self, version: int, count: int) -> list[Problem]:
        """The ``count`` problems that policy ``version`` is asked. Equal for equal arguments."""
        ...

    def reward(self, problem: Problem, text: str, finished: bool) -> float:
        """Score in [0, 1]. ``finished``: the policy ended its answer itself."""
        ...


# Things a small model can say something about; one word each, so that naming it is checkable.
TOPICS = (
    "rain snow wind fire water ice fog thunder sunlight sand soil stone "
    "iron gold salt sugar bread milk honey tea coffee rice "
    "music poetry painting dance history science "
    "a river|a mountain|a forest|a desert|an island|a volcano|a bridge|a lighthouse|"
    "a clock|a book|a map|a mirror|a candle|a bicycle|a telescope|a library|"
    "a whale|a bee|an owl|a horse|a spider|a tree"
)


def _topics() -> list[tuple[str, str]]:
    """Pairs of the phrase in the question and the word that an answer must contain."""
    single, phrases = TOPICS.rsplit(" a river", 1)
    plain = single.split()
    articled = ("a river" + phrases).split("|")
    return [(word, word) for word in plain] + [(p, p.split()[-1]) for p in articled]


class SentenceTask:
    """Explain a thing in one short sentence. A quarter of the reward for each check."""

    MAX_WORDS = 12

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._topics = _topics()

    def problems(self, version: int, count: int) -> list[Problem]:
        chosen = random.Random(f"{self._seed}/{version}").sample(self._topics, count)
        return [
            Problem("Answer in one short sentence.", f"What is {phrase}?", key)
            for phrase, key in chosen
        ]

    def reward(self, problem: Problem, text: str, finished: bool) -> float:
        answer = text.strip()
        words = answer.split()
        checks = (
            finished,
            0 < len(words) <= self.MAX_WORDS,
            problem.key in answer.lower(),
            answer[:1].isupper() and answer.find(".") == len(answer) - 1 and "\n" not in answer,
        )
        return sum(checks) / len(checks)


class CharacterTask:
    """For the model made on the spot: the share of characters of the class that was named."""

    CLASSES: ClassVar = {"vowels": "aeiou", "digits": "0123456789", "early": "abcdefghijklm"}

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def problems(self, version: int, count: int) -> list[Problem]:
        rng = random.Random(f"{self._seed}/{version}")
        return [Problem("", f"{key}:", key) for key in rng.choices(list(self.CLASSES), k=count)]

    def reward(self, problem: Problem, text: str, finished: bool) -> float:
        wanted = self.CLASSES[problem.key]
        return sum(c in wanted for c in text) / len(text) if text else 0.0
