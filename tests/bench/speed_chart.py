"""Draws the speed of contestants as bars: a group for each shape and precision, in which the fastest
of the others is as long as in every other group. One SVG, which follows a page's light or dark."""

import html

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 860, 150, 150, 46, 15, 14
COLOURS = {"Weft": "#f58518", "PyTorch compiled": "#4c78a8", "PyTorch eager": "#9ecae9"}
STYLE = """<style>
text { font-family: sans-serif; font-size: 12px; fill: #24292f }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""


def draw(rows, title):
    """rows: (label, {contestant: tokens a second}, ratio of Weft's speed to the best of the others),
    each with the names of COLOURS."""
    best_of_others = [max(rate for name, rate in rates.items() if name != "Weft")
                      for _, rates, _ in rows]
    longest = max(rate / best for (_, rates, _), best in zip(rows, best_of_others)
                  for rate in rates.values())
    scale = (WIDTH - LEFT - RIGHT) / longest
    shapes = []

    def text(x, y, words, anchor="start", weight="normal"):
        shapes.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
                      f'font-weight="{weight}">{html.escape(words)}</text>')

    text(8, 16, title, weight="bold")
    x = LEFT
    for name, colour in COLOURS.items():
        shapes.append(f'<rect x="{x}" y="25" width="11" height="11" fill="{colour}"/>')
        text(x + 16, 35, name)
        x += 34 + 7 * len(name)
    y = TOP
    for (label, rates, ratio), best in zip(rows, best_of_others):
        text(LEFT - 10, y + 1.5 * BAR + 4, label, "end")
        for name, colour in COLOURS.items():
            length = rates[name] / best * scale
            words = f"{rates[name]:.0f} tokens/s"
            if name == "Weft":
                words += f", {ratio:.2f} x"
            shapes.append(f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}" '
                          f'fill="{colour}"/>')
            text(LEFT + length + 6, y + BAR - 4, words, weight="bold" if name == "Weft" else "normal")
            y += BAR
        y += GAP
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
                      f'viewBox="0 0 {WIDTH} {y}">', STYLE, *shapes, "</svg>", ""])
