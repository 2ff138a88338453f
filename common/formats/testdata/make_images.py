"""Writes small images, and what Pillow makes of them.

images/       PNG and JPEG files of several kinds
images.json   for each: pixels in 3 and 1 colours, and the middle square at 5 x 5 and 16 x 16

Run: python make_images.py   (needs pillow, numpy)
"""

import json
import pathlib

import numpy
from PIL import Image

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "images"
FOLDER.mkdir(exist_ok=True)
rng = numpy.random.default_rng(5)
y, x = numpy.mgrid[0:9, 0:12]
smooth = numpy.stack([x * 20, y * 25, 255 - x * 10 - y * 10], -1).clip(0, 255).astype("uint8")
noise = rng.integers(0, 256, (9, 12, 3)).astype("uint8")
pictures = {"smooth.jpg": (Image.fromarray(smooth), {"quality": 95, "subsampling": 0}),
            "gray.jpg": (Image.fromarray(smooth[..., 0]), {"quality": 95}),
            "noise.png": (Image.fromarray(noise), {}),
            "gray.png": (Image.fromarray(noise[..., 0]), {}),
            "palette.png": (Image.fromarray(noise).quantize(16), {}),
            "deep.png": (Image.fromarray((noise[..., 0].astype("uint16") * 257)), {})}
golden = {}
for name, (picture, options) in pictures.items():
    picture.save(FOLDER / name, **options)
    loaded = Image.open(FOLDER / name)
    if name == "deep.png":
        loaded = Image.fromarray((numpy.asarray(loaded) // 257).astype("uint8"))
    rgb = loaded.convert("RGB")
    left = (rgb.width - rgb.height) // 2
    square = rgb.crop((left, 0, left + rgb.height, rgb.height))
    golden[name] = {"shape": [rgb.height, rgb.width], "rgb": numpy.asarray(rgb).ravel().tolist(),
                    **{str(n): numpy.asarray(square.resize((n, n), Image.Resampling.BILINEAR)).ravel().tolist()
                       for n in (5, 16)}}
(HERE / "images.json").write_text(json.dumps(golden) + "\n")
