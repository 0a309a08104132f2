import math


def ndcg_at_k(scores, relevant, k=20):
    """scores: (n_lists, n_tracks), relevant: list of sets with track ids."""
    total = 0.0
    for u, wanted in enumerate(relevant):
        ranking = sorted(range(scores.shape[1]), key=lambda j: scores[u, j], reverse=True)
        gain = sum(1.0 / math.log2(r + 2) for r, j in enumerate(ranking[:k]) if j in wanted)
        best = sum(1.0 / math.log2(r + 2) for r in range(min(k, len(wanted))))
        total += gain / best
    return total / len(relevant)
