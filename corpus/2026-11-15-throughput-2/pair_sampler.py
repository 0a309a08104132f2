"""Skip-gram pairs with negatives drawn from the smoothed unigram distribution."""

import random
from collections import Counter


class PairSampler:
    def __init__(self, sentences, window=3, negatives=5, power=0.75, seed=0):
        self.sentences = sentences
        self.window = window
        self.negatives = negatives
        self.rng = random.Random(seed)
        counts = Counter(word for sentence in sentences for word in sentence)
        self.words = sorted(counts)
        self.weights = [counts[word] ** power for word in self.words]

    def draw_pair(self):
        sentence = self.rng.choice(self.sentences)
        center = self.rng.randrange(len(sentence))
        low = max(0, center - self.window)
        high = min(len(sentence), center + self.window + 1)
        context = self.rng.choice([i for i in range(low, high) if i != center])
        return sentence[center], sentence[context]

    def next_batch(self, size):
        centers, contexts, noise = [], [], []
        while len(centers) < size:
            center, context = self.draw_pair()
            centers.append(center)
            contexts.append(context)
            noise.append(self.rng.choices(self.words, weights=self.weights, k=self.negatives))
        return centers, contexts, noise
