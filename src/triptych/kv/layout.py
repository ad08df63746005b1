"""How the KV cache is laid out: so many tokens a page, so many pages, so much per token and layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from triptych.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one layer's pages hold per token: [num_kv_heads, key_dim] and [num_kv_heads, value_dim]."""

    num_layers: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.num_layers * self.num_kv_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A pool of `num_pages` pages of `page_tokens` tokens each; one page spans all layers."""

    page_tokens: int
    num_pages: int
    shape: KvShape

    @classmethod
    def within(cls, pool_bytes: int, page_tokens: int, shape: KvShape) -> KvLayout:
        """The largest pool that `pool_bytes` hold.

        Raises:
            ConfigError: not even one page fits.
        """
        page_bytes = page_tokens * shape.bytes_per_token
        if pool_bytes < page_bytes:
            raise ConfigError(f"a KV pool of {pool_bytes} bytes holds no page: one takes {page_bytes} bytes")
        return cls(page_tokens=page_tokens, num_pages=pool_bytes // page_bytes, shape=shape)

    @property
    def page_bytes(self) -> int:
        return self.page_tokens * self.shape.bytes_per_token

    @property
    def num_tokens(self) -> int:
        """What the whole pool holds."""
        return self.num_pages * self.page_tokens

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` take."""
        return -(-num_tokens // self.page_tokens)
