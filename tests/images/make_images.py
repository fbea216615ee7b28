"""Writes driver/images/testdata: small JPEG, PNG and WebP files, and what Pillow decodes from them.

    python tests/images/make_images.py driver/images/testdata

Needs Pillow 13.0.0 and numpy. decoded.txt has a line for each file: name, alpha ("drop" or "white"), height, width and
the 64-bit FNV-1a hash of the RGB bytes of exif_transpose(Image.open(file)).convert("RGB"). The lines with "white" blend
the image over white first, as transformers 5.23.0 does (image_transforms.convert_to_rgb).
"""

import io
import pathlib
import struct
import sys
import zlib

import numpy as np
import PIL
from PIL import Image, ImageOps

ORIENTATION = 0x0112


def picture(height, width, channels=3, top=256):
    """A smooth picture with some edges, so that chroma subsampling and filters matter."""
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    values = 0.5 + 0.3 * np.sin((x * (3 + c) + y * 2) / 9) + 0.2 * np.cos(y * (1 + c) / 5)
    values = np.where((x // 8 + y // 6 + c) % 5 == 0, 1 - values, values)
    return np.clip(values * top, 0, top - 1).astype(np.uint16 if top > 256 else np.uint8)


def saved(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def exif(orientation):
    data = Image.Exif()
    data[ORIENTATION] = orientation
    return data


# Adam7: first row, first column, row step, column step of each pass.
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]


def png(samples, depth, color_type, interlaced=False, chunks=()):
    """A PNG of samples [height, width, channels], also of the kinds that Pillow cannot write."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def rows(part):
        out = b""
        for row in part.reshape(part.shape[0], -1):
            if depth == 16:
                packed = row.astype(">u2").tobytes()
            else:
                bits = np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - depth :]
                packed = np.packbits(bits.reshape(-1)).tobytes()
            out += b"\0" + packed
        return out

    height, width = samples.shape[:2]
    parts = [samples[y::dy, x::dx] for y, x, dy, dx in PASSES] if interlaced else [samples]
    data = b"".join(rows(part) for part in parts if part.size)
    head = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(chunk(*c) for c in chunks)
            + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def files():
    rgb = Image.fromarray(picture(29, 37))
    rgba = np.concatenate([picture(17, 23), picture(17, 23, 1)], axis=2)
    cmyk = saved(Image.fromarray(picture(13, 18, 4), "CMYK"), "JPEG", quality=90)
    palette = struct.pack("48B", *picture(16, 1).reshape(-1))
    made = {
        "jpeg_420.jpg": saved(rgb, "JPEG", quality=85),
        "jpeg_422.jpg": saved(rgb, "JPEG", quality=70, subsampling="4:2:2"),
        "jpeg_444_progressive.jpg": saved(rgb, "JPEG", quality=90, subsampling="4:4:4", progressive=True),
        "jpeg_grey.jpg": saved(rgb.convert("L"), "JPEG"),
        "jpeg_rgb.jpg": saved(rgb, "JPEG", keep_rgb=True),
        "jpeg_cmyk.jpg": cmyk,
        # The Adobe segment ends with the transform: 0 is CMYK, 2 is YCCK.
        "jpeg_ycck.jpg": cmyk.replace(b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\2"),
        "png_bits.png": png(picture(9, 21, 1) >> 7, 1, 0),
        "png_grey2.png": png(picture(9, 21, 1) >> 6, 2, 0),
        "png_grey16.png": png(picture(9, 21, 1, 600), 16, 0),
        "png_grey_alpha.png": png(picture(9, 21, 2), 8, 4),
        "png_rgb_interlaced.png": png(picture(13, 19), 8, 2, interlaced=True),
        "png_rgb16.png": png(picture(9, 21, 3, 65536), 16, 2),
        "png_rgb_key.png": png(picture(9, 21), 8, 2, chunks=[(b"tRNS", struct.pack(">3H", *picture(9, 21)[4, 5]))]),
        "png_rgba.png": png(rgba, 8, 6),
        "png_rgba16.png": png(rgba.astype(np.uint16) * 257, 16, 6),
        "png_palette4.png": png(picture(9, 21, 1) >> 4, 4, 3, chunks=[(b"PLTE", palette), (b"tRNS", bytes([0, 90, 200]))]),
        "webp_lossy.webp": saved(rgb, "WEBP", quality=80),
        "webp_lossless.webp": saved(rgb, "WEBP", lossless=True),
        "webp_alpha.webp": saved(Image.fromarray(rgba, "RGBA"), "WEBP", quality=70),
        "png_turned3.png": saved(rgb.crop((0, 0, 7, 5)), "PNG", exif=exif(3)),
        "webp_turned6.webp": saved(rgb.crop((0, 0, 7, 5)), "WEBP", lossless=True, exif=exif(6)),
    }
    small = Image.fromarray(picture(6, 11))
    for orientation in (2, 4, 5, 7, 8):
        made[f"jpeg_turned{orientation}.jpg"] = saved(small, "JPEG", exif=exif(orientation))
    assert made["jpeg_ycck.jpg"] != cmyk
    return made


def hash_of(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def has_alpha(image):
    return "A" in image.getbands() or image.info.get("transparency") is not None


def over_white(image):
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")


def main():
    assert PIL.__version__ == "13.0.0", PIL.__version__
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, data in sorted(files().items()):
        (folder / name).write_bytes(data)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        results = {"drop": image.convert("RGB")}
        if has_alpha(image):
            results["white"] = over_white(image)
        for alpha, result in results.items():
            lines.append(f"{name} {alpha} {result.height} {result.width} {hash_of(result.tobytes()):016x}\n")
    (folder / "decoded.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
