# %% [markdown]
# # A look inside: parts as torch modules
#
# A network is five `torch.nn` modules in a row, and each can be called by itself. We follow
# observations of a Gaussian process through a trained one: tokens, a grid of tokens, the layers on
# the grid, and targets.

# %%
import torch
from matplotlib.figure import Figure

import gridtnp as gt
from gridtnp.reproduce.gp import trained
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.processes import GaussianProcess, stream

model = trained(0.5)
for name, part in model.named_children():
    size = sum(p.numel() for p in part.parameters())
    print(f"{name:<11} {type(part).__name__:<20} {size:>8,} parameters")

# %%
process = GaussianProcess(
    box=((-3.0, 3.0), (-3.0, 3.0)), context=1500, targets=1, kernel=SquaredExponential(0.5)
)
seen = next(stream(process, seed=5, batch=1)).task.context["observations"]
line = torch.linspace(-3, 3, 121)
target = gt.PointSet(torch.cartesian_prod(line, line)[None])

with torch.no_grad():
    tokens = model.tokens("observations", seen)  # one token per observation
    grid = model.fusion({"observations": [tokens]})  # one per grid point
    layers = model.processor(grid)  # the grid after every layer
    z = model.decoder(model.tokens.targets(target), model.decoder.prepare(layers))
    predicted = model.likelihood.distribution(model.likelihood.head(z))
print("tokens", tuple(tokens.z.shape), "→ grid", tuple(grid.shape), "→", len(layers), "layers")
print("→ targets", tuple(z.shape), "→ mean", tuple(predicted.mean.shape))

# %% [markdown]
# What does a token on the grid know? We read the predicted mean at its grid point off its 64
# numbers by linear regression. After the encoder a token knows its own cell, and the picture is
# noisy. Layer by layer it learns from its neighbours.

# %%
with torch.no_grad():
    points = gt.PointSet(model.grid.points().flatten(0, 1)[None])
    answer = model(gt.Task({"observations": seen}, points)).mean.flatten().double()


def read_off(field: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The best linear guess of the answer from the tokens, and its correlation with it."""
    z = torch.nn.functional.pad(field.flatten(0, -2), (0, 1), value=1.0).double()
    guess = z @ torch.linalg.lstsq(z, answer[:, None]).solution[:, 0]
    correlation = torch.corrcoef(torch.stack([guess, answer]))[0, 1]
    return guess.reshape(model.grid.shape), float(correlation)


figure = Figure((13, 3.1), layout="constrained")
axes = figure.subplots(1, 5)
view = {"origin": "lower", "extent": (-3, 3, -3, 3), "vmin": -2.5, "vmax": 2.5}
axes[0].scatter(*seen.x[0].T, s=3, c=seen.y[0, :, 0], vmin=-2.5, vmax=2.5)
axes[0].set(title="observations", xlim=(-3, 3), ylim=(-3, 3), aspect="equal")
grids = {"grid encoder": grid, "first layer": layers[0], "last layer": layers[-1]}
for ax, (title, field) in zip(axes[1:], grids.items(), strict=False):
    guess, correlation = read_off(field[0])
    ax.imshow(guess.T, **view)
    ax.set_title(f"{title} ({correlation:.2f})")
axes[4].imshow(predicted.mean.reshape(121, 121).T, **view)
axes[4].set_title("predicted mean")
for ax in axes:
    ax.set(xticks=(-3, 0, 3), yticks=(-3, 0, 3))
figure.savefig("modules.webp", dpi=150)
