"""Stable Diffusion 1.5: text embeddings and a seed in, an image out; one request is one whole generation.

UNet, scheduler (DDIM) and VAE decoder are those of `diffusers`, from the published configuration, which is written
out here, or `size=tiny`, the same scaled down for a CPU. The noise of a row follows from its seed alone, whatever batch
it runs in. The UNet is the `core`: what variants compile, once for all steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailrate.serve import wire
from tailrate.serve.spec import ModelSpec, ServeError, Tensors, as_tuple
from tailrate.serve.wire import Array, TensorSpec, WireError

if TYPE_CHECKING:
    import torch

HUB = "stable-diffusion-v1-5/stable-diffusion-v1-5"
TOKENS = 77
CHANNELS = 4
SCALE = 8
"""Pixels per latent, each way."""

UNET: dict[str, dict[str, Any]] = {
    "sd15": {
        "sample_size": 64,
        "cross_attention_dim": 768,
        "attention_head_dim": 8,
        "block_out_channels": (320, 640, 1280, 1280),
        "layers_per_block": 2,
        "down_block_types": (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
        "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
    },
    "tiny": {
        "sample_size": 16,
        "cross_attention_dim": 64,
        "attention_head_dim": 4,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    },
}
VAE: dict[str, dict[str, Any]] = {
    "sd15": {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "norm_num_groups": 32},
    "tiny": {"block_out_channels": (16, 16, 32, 32), "layers_per_block": 1, "norm_num_groups": 8},
}
VAE_SCALING = 0.18215
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def spec(*, size: str = "tiny", steps: int = 10, guidance: float = 7.5, weights: str = "random") -> ModelSpec:
    """`guidance` above 1 runs the UNet on twice the rows, with and without the prompt."""
    if size not in UNET or not 1 <= steps <= 1000 or not 0 <= guidance <= 100:
        raise ServeError("stable_diffusion takes size tiny or sd15, steps from 1 to 1000, guidance from 0 to 100")
    if weights == "pretrained" or Path(weights).is_dir():
        size = "sd15"
    latent, width = UNET[size]["sample_size"], UNET[size]["cross_attention_dim"]
    inputs = (TensorSpec("prompt_embeds", "FP32", (-1, TOKENS, width)), TensorSpec("seed", "INT64", (-1, 1)))

    def prepare(tensors: Tensors) -> dict[str, Array]:
        wire.check(tensors, inputs)
        if not np.isfinite(tensors["prompt_embeds"]).all():
            raise WireError(400, "input 'prompt_embeds' holds NaN or infinity")
        if tensors["seed"].min() < 0:
            raise WireError(400, "input 'seed' must not be negative")
        return {"prompt_embeds": tensors["prompt_embeds"], "noise": _noise(tensors["seed"][:, 0], latent)}

    def example(rows: int, seed: int) -> dict[str, Array]:
        drawn = np.random.default_rng(seed)
        embeds = drawn.standard_normal((rows, TOKENS, width), dtype=np.float32)
        return {"prompt_embeds": embeds, "noise": _noise(drawn.integers(0, 1 << 31, rows), latent)}

    def build() -> torch.nn.Module:
        from diffusers import AutoencoderKL, UNet2DConditionModel

        blocks = len(VAE[size]["block_out_channels"])
        vae = AutoencoderKL(
            latent_channels=CHANNELS,
            down_block_types=("DownEncoderBlock2D",) * blocks,
            up_block_types=("UpDecoderBlock2D",) * blocks,
            **VAE[size],
        )
        return _pipeline(UNet2DConditionModel(**UNET[size]), vae, steps, guidance)

    def pretrained(source: str) -> torch.nn.Module:
        from diffusers import AutoencoderKL, UNet2DConditionModel

        where = HUB if source == "pretrained" else source
        unet = UNet2DConditionModel.from_pretrained(where, subfolder="unet")
        return _pipeline(unet, AutoencoderKL.from_pretrained(where, subfolder="vae"), steps, guidance)

    side = latent * SCALE
    return ModelSpec(
        name="stable_diffusion",
        inputs=inputs,
        outputs=(TensorSpec("image", "UINT8", (-1, 3, side, side)),),
        default_outputs=("image",),
        prepare=prepare,
        example=example,
        build=build,
        pretrained=pretrained,
        from_folder=True,
        core="step",
        max_batch=(2, 4),
        settings={"size": size, "steps": steps, "guidance": guidance},
        parameters={"iterations_per_request": steps, "size": size},
    )


def _noise(seeds: Array, latent: int) -> Array:
    shape = (CHANNELS, latent, latent)
    return np.stack([np.random.default_rng(int(seed)).standard_normal(shape, dtype=np.float32) for seed in seeds])


def _pipeline(unet: Any, vae: Any, steps: int, guidance: float) -> torch.nn.Module:
    import torch
    from diffusers import DDIMScheduler

    scheduler: Any = DDIMScheduler(clip_sample=False, set_alpha_to_one=False, **BETAS)
    scheduler.set_timesteps(steps)
    times = scheduler.timesteps.tolist()

    class Step(torch.nn.Module):
        """The UNet with tensors alone at both ends."""

        def __init__(self) -> None:
            super().__init__()
            self.unet = unet

        def forward(self, sample: torch.Tensor, time: torch.Tensor, embeds: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.unet(sample, time, embeds, return_dict=False)[0]
            return found

    class Pipeline(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = Step()
            self.vae = vae

        def forward(self, embeds: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            return self.with_core(self.step, embeds, noise)

        def with_core(self, step: Any, embeds: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
            twice = guidance > 1
            if twice:
                embeds = torch.cat([torch.zeros_like(embeds), embeds])
            sample = noise
            for at in times:
                given = torch.cat([sample, sample]) if twice else sample
                time = torch.full((len(given),), at, dtype=torch.int64, device=given.device)
                # cloned: what a CUDA graph returns is overwritten by its next replay
                found = as_tuple(step(given, time, embeds))[0].clone()
                if twice:
                    without, prompted = found.chunk(2)
                    found = without + guidance * (prompted - without)
                sample = scheduler.step(found, at, sample, return_dict=False)[0]
            decoded = self.vae.decode(sample / VAE_SCALING, return_dict=False)[0]
            image: torch.Tensor = ((decoded / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
            return image

    return Pipeline()
