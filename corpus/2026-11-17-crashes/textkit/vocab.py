"""Character vocabulary with reserved entries."""


class CharVocab:
    def __init__(self, text):
        self.itos = sorted(set(text))
        self.stoi = {ch: i for i, ch in enumerate(self.itos)}

    def __len__(self):
        return len(self.itos)

    def reserve(self, token):
        if token not in self.stoi:
            self.stoi[token] = len(self.itos)
            self.itos.append(token)
        return self.stoi[token]

    def encode(self, text):
        return [self.stoi[ch] for ch in text]


def join_documents(documents, vocab, separator="<eod>"):
    boundary = vocab.reserve(separator)
    ids = []
    for doc in documents:
        ids.extend(vocab.encode(doc))
        ids.append(boundary)
    return ids
