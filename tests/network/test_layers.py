"""Building blocks: row-wise steps of modules, and split projections."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gridtnp import ops
from gridtnp.network.embeddings import FourierEmbedding, InputEmbedding
from gridtnp.network.layers import MLP, AttentionBlock, mlp, split_projection, steps
from gridtnp.network.tokens import EmbeddedTokenEncoder
from gridtnp.task import PointSet


def test_an_mlp_computes_its_modules_in_order() -> None:
    network = mlp(3, 2, dim=5, hidden_layers=2)
    x = torch.randn(4, 3)
    torch.testing.assert_close(network(x), nn.Sequential.forward(network, x))


class Doubled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore
        return 2 * super().forward(x)


def hooked(module: nn.Linear) -> nn.Module:
    module.register_forward_hook(lambda _, __, y: 2 * y)
    return module


def hooked_before(module: nn.Linear) -> nn.Module:
    module.register_forward_pre_hook(lambda _, x: (2 * x[0],))
    return module


def normed(module: nn.Linear) -> nn.Module:
    torch.nn.utils.parametrizations.weight_norm(module)
    with torch.no_grad():
        module.parametrizations.weight.original0.mul_(2)  # pyright: ignore
    return module


def subclass(module: nn.Linear) -> nn.Module:
    other = Doubled(module.in_features, module.out_features, bias=module.bias is not None)
    other.load_state_dict(module.state_dict())
    return other


def patched(module: nn.Linear) -> nn.Module:
    module.forward = lambda x: 2 * nn.Linear.forward(module, x)  # pyright: ignore
    return module


class Adapted(nn.Module):
    """A low-rank adapter around a linear map."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__()
        self.module, self.weight, self.bias = module, module.weight, module.bias
        self.out_features = module.out_features
        self.low = nn.Linear(module.in_features, 1, bias=False)
        self.high = nn.Linear(1, module.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x) + self.high(self.low(x))


CHANGES = [hooked, hooked_before, normed, subclass, patched, Adapted]


@pytest.mark.parametrize("change", CHANGES)
def test_modules_that_compute_something_else_are_called(
    change: Callable[[nn.Linear], nn.Module],
) -> None:
    network = mlp(3, 2, dim=5)
    x = torch.randn(4, 3)
    before = network(x)
    network[2] = change(network[2])  # pyright: ignore
    after = network(x)
    assert (after - before).abs().max() > 1e-3
    torch.testing.assert_close(after, nn.Sequential.forward(network, x))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["project", "out", "norm", "feed_forward"])
def test_an_attention_block_computes_what_its_modules_do(
    change: Callable[[nn.Linear], nn.Module], part: str
) -> None:
    """Alone, the projections are those of the modules, called one after the other."""
    block, x, context = AttentionBlock(8, 2), torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    if part == "norm":
        block.norm.register_forward_hook(lambda _, __, y: y + 1)
    elif part == "feed_forward":
        block.feed_forward.register_forward_hook(lambda _, __, y: y + 1)
    else:
        setattr(block, part, change(getattr(block, part)))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ops.full_attention(q, k, v)

    def heads(z: Tensor) -> tuple[Tensor, ...]:
        return block.project(block.norm(z)).unflatten(-1, (3, 2, 4)).unbind(-3)

    def expected(keys_values: tuple[Tensor, ...]) -> Tensor:
        y = x + block.out(attend(heads(x)[0], *keys_values).flatten(-2))
        return y + block.feed_forward(y)

    torch.testing.assert_close(block(x, None, attend), expected(heads(x)[1:]))
    found = block(x, block.keys_values(context), attend)
    torch.testing.assert_close(found, expected(heads(context)[1:]))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["first", "mix"])
def test_token_encoders_compute_what_their_modules_do(
    change: Callable[[nn.Linear], nn.Module], where: str
) -> None:
    mix = FourierEmbedding(2, per_column=2, shortest=0.5, longest=4.0)
    embedding = InputEmbedding([((0, 1), mix)], 6)
    encoder = EmbeddedTokenEncoder(embedding, {"rain": 1}, dim=6, shared_with="rain")
    first = encoder.sources["rain"]
    assert isinstance(first, MLP)
    if where == "first":
        first[0] = change(first[0])  # pyright: ignore
    else:
        embedding.mix = change(embedding.mix)  # pyright: ignore
    points = PointSet(torch.rand(1, 5, 2), torch.randn(1, 5, 1))
    assert points.y is not None
    values = torch.cat([points.y, torch.zeros(1, 5, 1)], -1)
    expected = nn.Sequential.forward(first, torch.cat([embedding(points.x), values], -1))
    torch.testing.assert_close(encoder("rain", points).z, expected, rtol=1e-4, atol=1e-5)


def test_other_modules_are_called() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm((2, 4)), nn.Flatten(0, 0))
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(ops.rowwise(x, *steps(network)), network(x))


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(4, bias=False),
        nn.LayerNorm(4, elementwise_affine=False),
        nn.LayerNorm((3, 4)),
        nn.LayerNorm(4),
    ],
)
def test_norms_may_have_no_bias_or_no_weight(norm: nn.LayerNorm) -> None:
    network = MLP(norm, nn.Linear(4, 2))
    x = torch.randn(5, 3, 4)
    torch.testing.assert_close(network(x), network[1](norm(x)))


@pytest.mark.parametrize("layout", ["side by side", "apart", "the other way round"])
def test_split_projections_have_the_gradient_of_the_joint_one(layout: str) -> None:
    z = torch.randn(2, 3, 2, 4, 5, requires_grad=True)
    wanted = torch.randn(2, 3, 2, 4, 5)
    grads = list(wanted.unbind(-3))
    if layout == "apart":
        grads = [g.clone() for g in grads]
    elif layout == "the other way round":
        grads = list(wanted.flip(-3).contiguous().unbind(-3))[::-1]
    (found,) = torch.autograd.grad(split_projection(z), z, grads)
    assert torch.equal(found, wanted)
    if layout == "side by side":
        assert found.data_ptr() == wanted.data_ptr()  # without a copy


def test_a_module_can_stand_in_several_places() -> None:
    relu, linear = nn.ReLU(), nn.Linear(4, 4)
    network = nn.Sequential(linear, relu, linear, relu)
    x = torch.randn(5, 4)
    torch.testing.assert_close(ops.rowwise(x, *steps(network)), network(x))
