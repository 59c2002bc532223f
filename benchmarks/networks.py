"""Networks of torchvision, timm, Hugging Face and users at 90 % in the engine: what runs where, how exact, how fast.

    python benchmarks/networks.py [NAME ...] [--threads N] [--out FILE]     without names: one network of each family
    python benchmarks/networks.py --survey [--out FILE]                     all 150, every second one first

With --out, lines are appended to FILE and networks that stand there already are left out, so that a survey can be
stopped and taken up again; the summary of the whole file is printed at the end.

Weights are random: neither time nor exactness depends on their training. One line each: operators in the kernels and
in torch, the largest error as a share of the output's scale, seconds of torch divided by seconds of the engine
(batch 1), and the kind of operator that torch spends most time on.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import rankprune as rp
from _user_networks import NETWORKS
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
    "timm:dla34@64", "timm:dpn48b@65", "timm:edgenext_xx_small@64", "timm:efficientformer_l1@224",
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
# With those above, and those that users write, the 150 of the survey.
MORE = (
    "torchvision:resnet50@224", "torchvision:resnext50_32x4d@65", "torchvision:wide_resnet50_2@65",
    "torchvision:vgg11_bn@65", "torchvision:densenet169@65", "torchvision:efficientnet_v2_s@65",
    "torchvision:mobilenet_v3_large@224", "torchvision:regnet_x_400mf@65", "torchvision:shufflenet_v2_x1_0@65",
    "torchvision:vit_b_32@224", "torchvision:fcn_resnet50@65", "torchvision:deeplabv3_mobilenet_v3_large@65",
    "timm:resnet50@224", "timm:resnet26d@65", "timm:seresnet50@65", "timm:ecaresnet50t@65", "timm:res2next50@65",
    "timm:resnest14d@64", "timm:gernet_s@65", "timm:efficientnet_b1@65", "timm:tf_efficientnetv2_s@64",
    "timm:efficientnet_lite0@65", "timm:mobilenetv2_100@65", "timm:mobilenetv3_large_100@65",
    "timm:mobilenetv4_hybrid_medium@64", "timm:mixnet_s@65", "timm:mnasnet_100@65", "timm:fbnetc_100@65",
    "timm:regnetx_002@65", "timm:regnety_002@65", "timm:regnetz_b16@64", "timm:cspdarknet53@65", "timm:darknet53@65",
    "timm:ghostnetv2_100@64", "timm:xception41@97", "timm:inception_v4@97", "timm:nf_resnet50@64",
    "timm:resnetv2_50x1_bit@64", "timm:convnext_atto@64", "timm:convnextv2_atto@64", "timm:efficientvit_m0@224",
    "timm:efficientformerv2_s0@224", "timm:mobilevitv2_050@64", "timm:fastvit_sa12@64", "timm:caformer_s18@64",
    "timm:convformer_s18@64", "timm:deit3_small_patch16_224@224", "timm:beit_base_patch16_224@224",
    "timm:vit_base_patch16_siglip_224@224", "timm:swin_tiny_patch4_window7_224@224", "timm:coatnet_0_rw_224@224",
    "timm:coat_tiny@224", "timm:pit_ti_224@224", "timm:mvitv2_tiny@224", "timm:hiera_tiny_224@224",
    "timm:vit_relpos_small_patch16_224@224", "timm:xcit_tiny_12_p16_224@224", "timm:rdnet_tiny@64",
    "timm:mambaout_femto@64", "timm:eca_halonext26ts@256", "timm:tresnet_m@64", "timm:vgg11_bn@65",
)  # fmt: skip
SURVEY = (*(f"user:{name}" for name in NETWORKS), *FAMILIES, *MORE)


def build(name: str) -> tuple[nn.Module, Any]:
    """A pruned network in evaluation mode and an example for it: a tensor, or a dict of keyword arguments."""
    torch.manual_seed(0)
    source, _, rest = name.partition(":")
    model_name, _, size = rest.partition("@")
    if source == "user":
        model, example = NETWORKS[model_name]()
        model.eval()(example)  # makes lazy layers
    elif source == "hf":
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
        if example.dtype == torch.int64:
            return torch.randint(3, 900, (batch, *example.shape[1:]), generator=generator)
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


def summary(lines: list[str]) -> str:
    """What the lines of a survey add up to."""
    native = fast = slow = refused = torch_only = 0
    for each in lines:
        found = re.match(r"\S+ +(all by torch|\d+ native (\d+) torch) +\S+ +([\d.]+)", each)
        if found is None:
            refused += 1
            continue
        ratio = float(found[3])
        torch_only += found[2] is None
        native += found[2] == "0"
        fast += found[2] == "0" or ratio >= 1.5
        slow += ratio < 0.95
    return (
        f"{len(lines)} networks: {native} wholly native; {fast} wholly native or at least 1.5 x torch; "
        f"{torch_only} all by torch; {slow} slower than torch by more than 5 %; {refused} refused"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="torchvision:NAME@SIZE, timm:NAME@SIZE, hf:NAME or user:NAME")
    parser.add_argument("--survey", action="store_true", help="all 150 networks, every second one first")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="append to this file, and leave out what stands there")
    arguments = parser.parse_args()
    names = arguments.names or ((*SURVEY[::2], *SURVEY[1::2]) if arguments.survey else FAMILIES)
    heads = f"{'network':<44} {'operators':<22} {'error':>8} {'ratio':>6} {'torch ms':>9} {'s':>6}  slowest in torch"
    lines: list[str] = []
    if arguments.out is not None and arguments.out.exists():
        lines = [each for each in arguments.out.read_text().splitlines() if each.partition(" ")[0].count(":") == 1]
    elif arguments.out is not None:
        arguments.out.write_text(heads + "\n")
    known = {each.partition(" ")[0] for each in lines}
    print(heads, flush=True)
    for name in names:
        if name in known:
            continue
        try:
            lines.append(line(name, arguments.threads))
        except Exception as failure:
            lines.append(f"{name:<44} {type(failure).__name__}: {str(failure)[:150]}")
        print(lines[-1], flush=True)
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                file.write(lines[-1] + "\n")
    print(summary(lines))


if __name__ == "__main__":
    main()
