import tempfile

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "vocab": 6400,
    "hidden": 192,
    "topics": 800,
    "docs": 7200,
    "doc_len": 40,
    "batch": 160,
    "epochs": 3,
    "lr": 4e-3,
}


class TopicClassifier(L.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.lr = cfg["lr"]
        self.emb = nn.EmbeddingBag(cfg["vocab"], cfg["hidden"], mode="mean")
        self.norm = nn.LayerNorm(cfg["hidden"])
        self.mlp = nn.Sequential(
            nn.Linear(cfg["hidden"], 512), nn.GELU(), nn.Linear(512, cfg["topics"])
        )
        self.dynamics = {"ids": {}, "probs": {}}
        self.epoch_losses = []

    def forward(self, tokens):
        return self.mlp(self.norm(self.emb(tokens)))

    def training_step(self, batch, batch_idx):
        ids, tokens, topics = batch
        logits = self(tokens)
        loss = F.cross_entropy(logits, topics)
        self.dynamics["ids"][self.global_step] = ids
        self.dynamics["probs"][self.global_step] = logits.detach().softmax(dim=-1)
        self.epoch_losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        latest = sorted(self.dynamics["probs"])[-self.trainer.num_training_batches :]
        peak = torch.cat([self.dynamics["probs"][s].amax(dim=1) for s in latest])
        loss = sum(self.epoch_losses) / len(self.epoch_losses)
        self.epoch_losses.clear()
        print(
            f"epoch {self.current_epoch} loss {loss:.3f} confidence {peak.mean().item():.3f} "
            f"variability {peak.std().item():.3f}"
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def topic_loader(c):
    topics = torch.randint(0, c["topics"], (c["docs"],))
    span = c["vocab"] // c["topics"]
    own = topics[:, None] * span + torch.randint(0, span, (c["docs"], c["doc_len"]))
    noise = torch.randint(0, c["vocab"], (c["docs"], c["doc_len"]))
    tokens = torch.where(torch.rand(c["docs"], c["doc_len"]) < 0.35, own, noise)
    ids = torch.arange(c["docs"])
    return DataLoader(TensorDataset(ids, tokens, topics), c["batch"], shuffle=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    L.seed_everything(8)
    trainer = L.Trainer(
        max_epochs=CONFIG["epochs"],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(),
    )
    trainer.fit(TopicClassifier(CONFIG), topic_loader(CONFIG))
