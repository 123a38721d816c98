"""Every row of the paper's tables can be built and has the size that belongs to it."""

import pytest

from gridtnp import PRESETS, ModelConfig, build_model, preset

# Trainable parameters. An int is the exact count of the model behind the row, a string what the
# paper prints, in millions.
SIZES: dict[str, int | str] = {
    "gp/cnp": 214_914,
    "gp/pt-tnp-128": 1_504_770,
    "gp/pt-tnp-256": 1_521_154,
    "gp/convcnp-32x32": 2_115_334,
    "gp/convcnp-64x64": 6_702_854,
    "gp/vitnp-ki-16x16": 1_091_588,
    "gp/vitnp-pt-16x16": 1_223_554,
    "gp/vitnp-ki-32x32": 1_091_588,
    "gp/vitnp-pt-32x32": 1_321_858,
    "gp/vitnp-ki-32x32-to-16x16": 1_157_252,
    "gp/vitnp-pt-32x32-to-16x16": 1_387_522,
    "gp/vitnp-ki-64x64-to-32x32": 1_157_252,
    "gp/vitnp-pt-64x64-to-32x32": 1_780_738,
    "gp/swin-tnp-ki-32x32": 1_091_588,
    "gp/swin-tnp-pt-32x32": 1_321_858,
    "gp/swin-tnp-avg-32x32": 1_222_658,
    "gp/swin-tnp-ki-64x64": 1_091_588,
    "gp/swin-tnp-pt-64x64": 1_715_074,
    "gp/swin-tnp-avg-64x64": 1_615_874,
    "gp/swin-tnp-ki-32x32-full": 1_091_588,
    "gp/swin-tnp-pt-32x32-full": 1_321_858,
    "stations/cnp": "0.34",
    "stations/pt-tnp-256": "1.57",
    "stations/convcnp-64x128-full": 9_357_316,
    "stations/convcnp-192x384": 9_357_316,
    "stations/vitnp-ki-48x96": "1.14",
    "stations/vitnp-pt-48x96": 1_826_690,
    "stations/vitnp-ki-144x288-to-48x96": "1.29",
    "stations/vitnp-pt-144x288-to-48x96": 6_692_866,
    "stations/swin-tnp-ki-64x128": 1_137_667,
    "stations/swin-tnp-pt-64x128": 2_285_442,
    "stations/swin-tnp-ki-64x128-full": 1_137_667,
    "stations/swin-tnp-pt-64x128-full": 2_285_442,
    "stations/swin-tnp-pt-64x128-skt": "2.29",
    "stations/swin-tnp-pt-64x128-t2m": "2.24",
    "stations/swin-tnp-pt-192x384": 10_674_050,
    "stations-rich/cnp": "0.34",
    "stations-rich/pt-tnp-256": "1.57",
    "stations-rich/convcnp-64x128": 9_357_316,
    "stations-rich/vitnp-ki-48x96": "1.14",
    "stations-rich/vitnp-pt-48x96": 1_826_690,
    "stations-rich/vitnp-ki-144x288-to-48x96": "1.29",
    "stations-rich/vitnp-pt-144x288-to-48x96": 6_692_866,
    "stations-rich/swin-tnp-ki-128x256": 1_137_667,
    "stations-rich/swin-tnp-pt-128x256": "5.43",
    "stations-rich/swin-tnp-pt-128x256-skt": "5.43",
    "stations-rich/swin-tnp-pt-128x256-t2m": "5.38",
    "wind/cnp": "0.66",
    "wind/pt-tnp-64": "1.79",
    "wind/convcnp-24x60": 14_405_904,
    "wind/convcnp-48x120": 14_405_904,
    "wind/vitnp-multi-ki-12x30": "1.49",
    "wind/vitnp-multi-pt-12x30": 2_358_412,
    "wind/vitnp-multi-ki-24x60-to-12x30": "1.55",
    "wind/vitnp-multi-pt-24x60-to-12x30": 3_253_516,
    "wind/swin-tnp-multi-ki-24x60": 1_486_744,
    "wind/swin-tnp-multi-pt-24x60": 3_187_852,
    "wind/swin-tnp-single-ki-24x60": "1.39",
    "wind/swin-tnp-single-pt-24x60": 1_671_820,
    "wind/swin-tnp-multi-pt-48x120": 6_505_612,
}


def test_every_row_of_the_four_tables_has_a_preset() -> None:
    assert set(PRESETS) == set(SIZES)
    per_table = {t: sum(n.startswith(f"{t}/") for n in PRESETS) for t in ("gp", "stations")}
    assert per_table == {"gp": 21, "stations": 15}


@pytest.mark.parametrize("name", SIZES)
def test_size_is_the_papers(name: str) -> None:
    size = sum(p.numel() for p in build_model(preset(name)).parameters() if p.requires_grad)
    expected = SIZES[name]
    if isinstance(expected, int):
        assert size == expected
    else:
        assert f"{size / 1e6:.2f}" == expected


@pytest.mark.parametrize("name", SIZES)
def test_configuration_survives_json(name: str) -> None:
    config = preset(name)
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config


def test_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(ValueError, match="did you mean 'gp/swin-tnp-pt-64x64'"):
        preset("gp/swin-pt-64x64")


def test_rich_context_has_the_minimum_noise_of_the_appendix() -> None:
    for name, config in PRESETS.items():
        variance = 0.01 if name.startswith("stations-rich/") else 0.0
        assert config.min_noise**2 == pytest.approx(variance)
