"""A micro-batch with only prompt tokens divides by a mask sum of zero; accumulation spreads NaN.

Kind of report: supervised fine-tuning of a small language model where, with small micro-batches,
every label of one micro-batch is masked out. The loss of the three other micro-batches is fine,
but the sum of the four gradients is NaN.
"""
# expect: NUM001
# poisoned-steps: [9, 26]
# category: NUM001

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)

block_size = 24
micro_batch_size = 4
gradient_accumulation_steps = 4
max_iters = 36
vocab_size = 40
n_embd = 48
learning_rate = 1e-3
log_interval = 6

# conversations: prompt, then an answer that repeats the prompt shifted by one
num_rows = max_iters * gradient_accumulation_steps * micro_batch_size
tokens = torch.randint(0, vocab_size, (num_rows, block_size + 1))
tokens[:, 1::2] = (tokens[:, 0:-1:2] + 1) % vocab_size
prompt_len = torch.randint(4, block_size - 6, (num_rows,))
# four very long prompts in a row, cut off before the answer begins (twice in the file)
for start in ((9 * 4 + 2) * 4, (26 * 4 + 0) * 4):
    prompt_len[start : start + 4] = block_size + 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, 4, batch_first=True)
        self.ln2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        T = x.size(1)
        causal = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=causal, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets, mask):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        nll = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return logits, (nll * mask).sum() / mask.sum()


def get_micro_batch(k):
    rows = slice(k * micro_batch_size, (k + 1) * micro_batch_size)
    seq = tokens[rows]
    mask = torch.arange(1, block_size + 1)[None, :] >= prompt_len[rows, None]
    return seq[:, :-1], seq[:, 1:], mask.float()


model = TinyGPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))

for iter_num in range(max_iters):
    lossf = 0.0
    for micro_step in range(gradient_accumulation_steps):
        X, Y, M = get_micro_batch(iter_num * gradient_accumulation_steps + micro_step)
        logits, loss = model(X, Y, M)
        loss = loss / gradient_accumulation_steps
        lossf += loss.item()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {lossf:.4f}")

print(f"final loss {lossf:.4f}")
