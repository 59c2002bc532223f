"""Networks of torchvision, timm and Hugging Face at 90 % sparsity in the engine: what runs where, how exact, how fast.

    python benchmarks/networks.py [NAME ...] [--threads N]     without names: one network of each family

Weights are random: neither time nor exactness depends on their training. One line each: operators in the kernels and
in torch, the largest error as a share of the output's scale, seconds of torch divided by seconds of the engine
(batch 1), and the kind of operator that torch spends most time on.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import rankprune as rp
from rankprune.engine.compile import Compiled

# Image size behind @: odd where the network allows it, small where it is slow.
FAMILIES = (
    "torchvision:alexnet@127", "torchvision:convnext_tiny@65", "torchvision:densenet121@65",
    "torchvision:efficientnet_b0@65", "torchvision:googlenet@65", "torchvision:inception_v3@97",
    "torchvision:lraspp_mobilenet_v3_large@65", "torchvision:maxvit_t@224", "torchvision:mnasnet0_5@65",
    "torchvision:mobilenet_v2@65", "torchvision:mobilenet_v3_small@65", "torchvision:regnet_y_400mf@65",
    "torchvision:resnet18@65", "torchvision:shufflenet_v2_x0_5@65", "torchvision:squeezenet1_1@65",
    "torchvision:swin_t@64", "torchvision:swin_v2_t@64", "torchvision:vgg11@65", "timm:botnet26t_256@256",
    "timm:cait_xxs24_224@224", "timm:coat_lite_tiny@224", "timm:convit_tiny@224", "timm:convmixer_768_32@65",
    "timm:crossvit_tiny_240@240", "timm:cspresnet50@65", "timm:davit_tiny@64", "timm:deit_tiny_patch16_224@224",
    "timm:dla34@65", "timm:dpn48b@65", "timm:edgenext_xx_small@64", "timm:efficientformer_l1@224",
    "timm:efficientvit_b0@64", "timm:ese_vovnet19b_dw@65", "timm:eva02_tiny_patch14_224@224", "timm:fastvit_t8@64",
    "timm:focalnet_tiny_srf@64", "timm:gcvit_xxtiny@224", "timm:ghostnet_100@65", "timm:gmlp_ti16_224@224",
    "timm:hgnetv2_b0@65", "timm:hrnet_w18_small@64", "timm:inception_next_tiny@64", "timm:lambda_resnet26t@128",
    "timm:lcnet_050@65", "timm:levit_128s@224", "timm:mixer_s16_224@224", "timm:mobilenetv4_conv_small@65",
    "timm:mobileone_s0@65", "timm:mobilevit_xxs@64", "timm:nest_tiny@224", "timm:nfnet_l0@64",
    "timm:poolformer_s12@64", "timm:pvt_v2_b0@64", "timm:repvgg_a0@65", "timm:repvit_m0_9@64",
    "timm:res2net50_26w_4s@65", "timm:resmlp_12_224@224", "timm:resnetv2_50@65", "timm:rexnet_100@65",
    "timm:selecsls42@65", "timm:sequencer2d_s@224", "timm:skresnet18@65", "timm:starnet_s1@65",
    "timm:swinv2_cr_tiny_224@224", "timm:tiny_vit_5m_224@224", "timm:tnt_s_patch16_224@224",
    "timm:twins_svt_small@224", "timm:visformer_tiny@224", "timm:vit_tiny_patch16_224@224", "timm:volo_d1_224@224",
    "timm:xcit_nano_12_p16_224@224", "hf:bert", "hf:distilbert", "hf:gpt2", "hf:roberta",
)  # fmt: skip


def build(name: str) -> tuple[nn.Module, Any]:
    """A pruned network in evaluation mode and an example for it: a tensor, or a dict of keyword arguments."""
    torch.manual_seed(0)
    source, _, rest = name.partition(":")
    model_name, _, size = rest.partition("@")
    if source == "hf":
        model, example = _language_model(model_name)
    else:
        model = _vision_model(source, model_name)
        example = torch.randn(1, 3, int(size or 224), int(size or 224))
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rp.prune(model, sparsity=0.9)
    return model, example


def _vision_model(source: str, name: str) -> nn.Module:
    if source == "timm":
        import timm

        return timm.create_model(name)
    import torchvision

    more = {"weights_backbone": None} if name.startswith(("lraspp", "fcn", "deeplab")) else {}
    more |= {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, **more)


def _language_model(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    import transformers

    kinds = {"bert": "Bert", "distilbert": "DistilBert", "gpt2": "GPT2", "roberta": "Roberta"}
    config = getattr(transformers, f"{kinds[name.split('-')[0]]}Config")()
    if not name.endswith("-base"):  # base: as the configuration has it by default
        config.num_hidden_layers, config.hidden_size, config.num_attention_heads = 2, 192, 3
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = getattr(transformers, f"{kinds[name.split('-')[0]]}Model")(config)
    mask = torch.ones(1, 37, dtype=torch.int64)
    mask[:, 30:] = 0
    return model, {"input_ids": torch.randint(3, 900, (1, 37)), "attention_mask": mask}


def repeated(example: Any, batch: int) -> Any:
    """Other numbers of the same kind, for a batch of this size."""
    generator = torch.Generator().manual_seed(batch)
    if isinstance(example, Tensor):
        return torch.randn(batch, *example.shape[1:], generator=generator)
    ids = torch.randint(3, 900, (batch, example["input_ids"].shape[1]), generator=generator)
    return {"input_ids": ids, "attention_mask": example["attention_mask"].expand(batch, -1)}


def call(model: Any, example: Any) -> Any:
    with torch.no_grad():
        return model(**example) if isinstance(example, dict) else model(example)


def error(model: nn.Module, fast: Compiled, example: Any) -> float:
    """The largest difference from torch as a share of the largest number, over all floating-point outputs."""
    want, got = (pytree.tree_leaves(call(m, example)) for m in (model, fast))
    pairs = [(a, b) for a, b in zip(want, got, strict=True) if isinstance(a, Tensor) and a.is_floating_point()]
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs) or not pairs:
        return float("inf")
    return max(float((a - b).abs().max() / a.abs().max().clamp_min(1e-30)) for a, b in pairs)


def slowest_in_torch(fast: Compiled, example: Any) -> str:
    """The operator of the islands that takes most time."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call(fast, example)
    spent = Counter({event.key: event.self_cpu_time_total for event in seen.key_averages() if "::" in event.key})
    return spent.most_common(1)[0][0] if spent else ""


def line(name: str, threads: int | None) -> str:
    model, example = build(name)
    began = time.perf_counter()
    fast = rp.compile(model, example, threads=threads)
    spent = time.perf_counter() - began
    worst = max(error(model, fast, repeated(example, n)) for n in (1, 3))
    report, program = fast.report, fast.program
    kernels = sum(len(native.engine.graph.nodes) for native in program.natives) if program is not None else 0
    where = "all by torch" if report.torch_only else f"{kernels} native {len(report.islands) + len(report.left)} torch"
    most = "" if not fast.islands and not report.left else slowest_in_torch(fast, example)
    ratio = report.torch_seconds / report.engine_seconds
    dense = 1e3 * report.torch_seconds
    return f"{name:<44} {where:<22} {worst:>8.1e} {ratio:>6.2f} {dense:>9.2f} {spent:>6.1f}  {most}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=FAMILIES, help="torchvision:NAME@SIZE, timm:NAME@SIZE or hf:NAME")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    heads = f"{'network':<44} {'operators':<22} {'error':>8} {'ratio':>6} {'torch ms':>9} {'s':>6}  slowest in torch"
    print(heads, flush=True)
    for name in arguments.names:
        try:
            print(line(name, arguments.threads), flush=True)
        except Exception as failure:
            print(f"{name:<44} {type(failure).__name__}: {str(failure)[:150]}", flush=True)


if __name__ == "__main__":
    main()
