"""Draws the panels of a report side by side into one small SVG."""

import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

matplotlib.rcParams.update({
    "svg.hashsalt": "weft",  # the same image is the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
})


def draw(panels, path):
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.4), squeeze=False,
                                   layout="constrained")
    for panel, axis in zip(panels, axes[0]):
        for series in panel.series:
            x, y = zip(*series.points)
            axis.plot(x, y, label=series.label, linewidth=1.3,
                      marker="o" if series.markers else None, markersize=3)
        if panel.level:
            value, label = panel.level
            axis.axhline(value, color="black", linestyle=":", linewidth=1, label=label or None)
        if panel.log_x:
            axis.set_xscale("log")
        if panel.y_limits:
            axis.set_ylim(panel.y_limits)
        axis.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
        axis.legend()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
