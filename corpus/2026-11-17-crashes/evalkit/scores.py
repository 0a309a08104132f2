"""Per-class precision and recall from plain Python counts."""
from collections import Counter


class ClassScores:
    def __init__(self, names):
        self.names = names
        self.clear()

    def clear(self):
        self.hits = Counter()
        self.guessed = Counter()
        self.present = Counter()

    def add(self, guesses, labels):
        for guess, label in zip(guesses, labels):
            self.guessed[guess] += 1
            self.present[label] += 1
            if guess == label:
                self.hits[label] += 1

    def precision(self, index):
        return self.hits[index] / self.guessed[index]

    def recall(self, index):
        return self.hits[index] / max(1, self.present[index])

    def summary(self):
        lines = []
        for index, name in enumerate(self.names):
            lines.append(f"{name}: {self.precision(index):.2f}/{self.recall(index):.2f}")
        return ", ".join(lines)
