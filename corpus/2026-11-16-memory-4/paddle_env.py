import os

import numpy as np


class Paddle:
    """Catch the falling ball: three actions, episodes of fixed height."""

    def __init__(self, grid=12, pixels=120, seed=0):
        self.grid, self.pixels = grid, pixels
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.row, self.col = 0, int(self.rng.integers(self.grid))
        self.pos = self.grid // 2
        return self.observe()

    def observe(self):
        g = self.grid
        return np.array([self.row / g, self.col / g, self.pos / g, (self.col - self.pos) / g])

    def step(self, action):
        self.pos = int(np.clip(self.pos + action - 1, 0, self.grid - 1))
        self.row += 1
        done = self.row == self.grid - 1
        reward = float(abs(self.pos - self.col) <= 1) if done else 0.0
        return self.observe(), reward - 0.02 * abs(self.pos - self.col), done

    def render(self):
        cell = self.pixels // self.grid
        frame = np.full((self.pixels, self.pixels, 3), 24, dtype=np.uint8)
        r, c, p = self.row * cell, self.col * cell, self.pos * cell
        frame[r : r + cell, c : c + cell] = (240, 200, 40)
        frame[-cell:, p : p + cell] = (80, 160, 250)
        return frame


class ClipWriter:
    """Environment wrapper that writes a short clip every so many episodes."""

    def __init__(self, env, folder, every=60, clip_len=40):
        self.env, self.folder = env, folder
        self.every, self.clip_len = every, clip_len
        self.episode = 0
        self.frames = []

    def reset(self):
        if self.episode and self.episode % self.every == 0:
            clip = np.stack(self.frames[-self.clip_len :])
            np.save(os.path.join(self.folder, f"clip_{self.episode:05d}.npy"), clip)
        self.episode += 1
        return self.env.reset()

    def step(self, action):
        result = self.env.step(action)
        self.frames.append(self.env.render())
        return result
