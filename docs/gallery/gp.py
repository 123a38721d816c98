# %% [markdown]
# # A Gaussian process, and the exact answer
#
# For functions drawn from a known Gaussian process there is a best answer, the exact posterior.
# It costs the cube of the number of observations; the network costs about as much as there are
# observations. How much is lost? The package has a network of 0.2 million parameters that was
# trained on such functions for an hour on one core.

# %%
import torch
from matplotlib.figure import Figure

import gridtnp as gt
from gridtnp.reproduce.gp import trained
from gridtnp.synthetic.covariances import SquaredExponential
from gridtnp.synthetic.posterior import posterior
from gridtnp.synthetic.processes import GaussianProcess, stream

process = GaussianProcess(
    box=((-3.0, 3.0), (-3.0, 3.0)), context=2500, targets=500, kernel=SquaredExponential(0.5)
)
batch = next(stream(process, seed=3, batch=1))
model = trained(0.5)

# %% [markdown]
# At the targets, the difference in log-likelihood is what the network loses, in nats per target.

# %%
y = batch.task.target.y
with torch.no_grad():
    found = model(batch.task).log_prob(y).mean()
best = batch.posterior().log_prob(y.double()).mean()
print(f"exact {best:.3f}, network {found:.3f}, gap {best - found:.3f}")

# %% [markdown]
# On a fine lattice the means look alike. Both are least sure at the edge; inside, the network's
# standard deviation follows the exact one within a few per cent, but is not as smooth. It was
# trained with this many observations; train with a range, `context=(100, 2500)`, if yours vary.

# %%
seen = batch.task.context["observations"]
line = torch.linspace(-3, 3, 121)
lattice = torch.cartesian_prod(line, line)
with torch.no_grad():
    network = model(gt.Task({"observations": seen}, gt.PointSet(lattice[None])))
exact = posterior(SquaredExponential(0.5), 0.1, seen.x[0], seen.y[0, :, 0], lattice, reach=3.0)

figure = Figure((12, 3.2), layout="constrained")
panels = {
    "mean, exact": (exact.mean, "viridis", -2.5, 2.5),
    "mean, network": (network.mean, "viridis", -2.5, 2.5),
    "standard deviation, exact": (exact.stddev, "cividis", 0.1, 0.12),
    "standard deviation, network": (network.stddev, "cividis", 0.1, 0.12),
}
axes = figure.subplots(1, 4)
for ax, (title, (field, colours, low, high)) in zip(axes, panels.items(), strict=True):
    image = field.reshape(121, 121).T
    mesh = ax.imshow(
        image, cmap=colours, vmin=low, vmax=high, origin="lower", extent=(-3, 3, -3, 3)
    )
    ax.set(title=title, xticks=(-3, 0, 3), yticks=(-3, 0, 3))
    figure.colorbar(mesh, ax=ax, location="bottom", aspect=30)
figure.savefig("gp.webp", dpi=150)
