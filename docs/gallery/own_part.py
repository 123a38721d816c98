# %% [markdown]
# # A part of your own
#
# Every part of a network is a `torch.nn.Module` with a small interface, and none depends on the
# class of another. Here is a grid encoder that takes the maximum of the tokens in every cell. The
# contract of its role says whether it is right; then it takes the place of another in a network,
# which we train in a plain PyTorch loop.

# %%
from collections.abc import Iterable

import torch
from matplotlib.figure import Figure

import gridtnp as gt
from gridtnp.network.grid_encoders import GridEncoder
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.posterior import posterior
from gridtnp.synthetic.processes import GaussianProcess, stream
from gridtnp.testing import check_grid_encoder


class MaxGridEncoder(GridEncoder):
    def __init__(self, grid: gt.Grid) -> None:
        super().__init__()
        self.grid = grid

    def forward(self, pieces: Iterable[gt.TokenSet]) -> torch.Tensor:
        u = None
        for tokens in pieces:  # large sets come in several pieces
            z = tokens.z.relu()  # empty cells are zero
            if tokens.mask is not None:
                z = z * tokens.mask.unsqueeze(-1)
            if u is None:
                u = z.new_zeros(z.shape[0], self.grid.size, z.shape[-1])
            cell = self.grid.nearest(tokens.x).unsqueeze(-1).expand_as(z)
            u = u.scatter_reduce(1, cell, z, "amax")
        return u.unflatten(1, self.grid.shape)


# %% [markdown]
# The contract tries shapes, the order of points, masks, empty sets, precisions and gradients. It
# raises an error that names the property that does not hold.

# %%
grid = gt.Grid((gt.Axis.span("x1", -2, 2, 16), gt.Axis.span("x2", -2, 2, 16)))
check_grid_encoder(lambda: MaxGridEncoder(grid), dim=8)
print("MaxGridEncoder keeps the contract of a grid encoder")

# %%
torch.manual_seed(0)
preset = gt.preset("gp/swin-tnp-pt-32x32")
architecture = preset.architecture.model_copy(update={"grid": grid})
config = preset.model_copy(update={"architecture": architecture, "dim": 32, "heads": 4})
model = gt.build_model(config.relative().smooth())
model.fusion.encoder = MaxGridEncoder(grid)

kernel = SquaredExponential(0.6)
process = GaussianProcess(box=((-2, 2), (-2, 2)), context=(100, 300), targets=300, kernel=kernel)
optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
steps = 500
for step, batch in zip(range(steps), stream(process, seed=0, batch=4), strict=False):
    optimiser.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)
    optimiser.zero_grad()
    loss = model.loss(batch.task)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimiser.step()
    if step % 100 == 0:
        print(f"step {step}: negative log-likelihood {loss.item():.2f}")

# %% [markdown]
# The result on a new function, beside the exact posterior.

# %%
seen = next(stream(process, seed=1, batch=1)).task.context["observations"]
line = torch.linspace(-2, 2, 121)
lattice = torch.cartesian_prod(line, line)
with torch.no_grad():
    task = gt.Task({"observations": seen}, gt.PointSet(lattice[None]))
    mine = model(task)
exact = posterior(kernel, 0.1, seen.x[0], seen.y[0, :, 0], lattice)

figure = Figure((9, 3.4), layout="constrained")
panels = {"observations": None, "mean, our encoder": mine.mean, "mean, exact": exact.mean}
axes = figure.subplots(1, 3)
for ax, (title, field) in zip(axes, panels.items(), strict=True):
    if field is None:
        ax.scatter(*seen.x[0].T, s=12, c=seen.y[0, :, 0], vmin=-2.5, vmax=2.5)
        ax.set_aspect("equal")
    else:
        image = field.reshape(121, 121).T
        mesh = ax.imshow(image, vmin=-2.5, vmax=2.5, origin="lower", extent=(-2, 2, -2, 2))
    ax.set(title=title, xlim=(-2, 2), ylim=(-2, 2), xticks=(-2, 0, 2), yticks=(-2, 0, 2))
figure.colorbar(mesh, ax=axes, pad=0.01)
figure.savefig("own_part.webp", dpi=150)
