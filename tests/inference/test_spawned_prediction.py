"""Predictions in a process of one's own, started from one that has used its threads already."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from fitting_cases import parts, small

from gridtnp.data.dataset import Dataset
from gridtnp.estimator import GriddedTNP


def predict(model: GriddedTNP, data: Dataset) -> np.ndarray:
    torch.set_num_threads(2)
    at = (np.linspace(49, 53, 4000), np.linspace(-2, 2, 4000))
    return model.predict(data.at("2019-03-02"), at=at, progress=False)["t2m_mean"]


def test_a_spawned_process_predicts_with_several_threads() -> None:
    """A forked one would wait forever for threads that it does not have; see docs/beware.md."""
    train, _, _ = parts()
    model, threads = small(train), torch.get_num_threads()
    try:
        here = predict(model, train)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            there = pool.submit(predict, model, train).result(timeout=300)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(there, here)
