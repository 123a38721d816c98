"""OGC API – Environmental Data Retrieval: landing page, conformance, collections, locations."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import numpy as np
from edr_pydantic.capabilities import ConformanceModel, LandingPageModel
from edr_pydantic.collections import Collection, Collections
from edr_pydantic.data_queries import DataQueries, EDRQuery
from edr_pydantic.extent import Extent, Spatial, Temporal
from edr_pydantic.link import EDRQueryLink, Link
from edr_pydantic.observed_property import ObservedProperty
from edr_pydantic.parameter import Parameter, Parameters
from edr_pydantic.unit import Unit
from edr_pydantic.variables import Variables

from gridtnp.inference.queries import column
from gridtnp.server.coverages import time_texts
from gridtnp.server.queries import CRS84, FORMATS
from gridtnp.server.served import LISTED, Served

COLLECTION = "predictions"
CONFORMANCE = [
    "http://www.opengis.net/spec/ogcapi-common-1/1.0/conf/core",
    "http://www.opengis.net/spec/ogcapi-common-2/1.0/conf/collections",
    "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/core",
    "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/collections",
    "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/json",
    "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/geojson",
    "http://www.opengis.net/spec/ogcapi-edr-1/1.1/conf/covjson",
]
TIME_SYSTEM = (
    'TIMECRS["DateTime",TDATUM["Gregorian Calendar"],CS[TemporalDateTime,1],'
    'AXIS["Time (T)",future]]'
)
JSON = "application/json"


def landing(served: Served, base: str) -> LandingPageModel:
    title = f"{', '.join(served.variables)} by gridtnp"
    return LandingPageModel(
        title=title,
        description="Predictions with uncertainty at any place and time.",
        links=[
            _link(base, "?f=json", "self", "This page", JSON),
            _link(base, "?f=html", "alternate", "Live map", "text/html"),
            _link(base, "openapi.json", "service-desc", "OpenAPI description", JSON),
            _link(base, "?f=html", "service-doc", "Live map, with addresses", "text/html"),
            _link(base, "conformance", "conformance", "Conformance classes", JSON),
            _link(base, "collections", "data", "Collections", JSON),
        ],
    )


def conformance() -> ConformanceModel:
    return ConformanceModel(conformsTo=CONFORMANCE)


def collections(served: Served, base: str) -> Collections:
    links = [_link(base, "collections", "self", "Collections", JSON)]
    return Collections(links=links, collections=[collection(served, base)])


def collection(served: Served, base: str) -> Collection:
    """All that can be asked for: parameters, extents and queries."""
    here = f"collections/{COLLECTION}"
    names = [column(variable, what) for variable in served.variables for what in LISTED]
    kinds = ["position", "area", "cube", "trajectory"]
    if served.stations is not None:
        kinds.append("locations")
    return Collection(
        id=COLLECTION,
        title=f"Predictions of {', '.join(served.variables)}",
        description=(
            "Mean, standard deviation, quantiles (<variable>_q05 is the 5 % quantile; any other "
            "may be asked for), probabilities (<variable>_above_<threshold>), and support, the "
            "distance to the nearest observation."
        ),
        links=[
            _link(base, here, "self", "This collection", JSON),
            _link(base, "tiles/{z}/{x}/{y}.png", "tiles", "Map tiles", "image/png", True),
        ],
        extent=extent(served),
        data_queries=DataQueries(**{kind: _query(base, here, kind) for kind in kinds}),
        crs=["CRS84"],
        output_formats=list(FORMATS),
        parameter_names=Parameters({name: _parameter(name, served.about(name)) for name in names}),
    )


def extent(served: Served) -> Extent:
    region, times = served.region, served.times
    west, east = (
        (-180.0, 180.0) if region.around else (_wrapped(region.west), _wrapped(region.east))
    )
    spatial = Spatial(bbox=[[west, region.south, east, region.north]], crs=CRS84)
    if times is None:
        return Extent(spatial=spatial)
    texts = time_texts(times)
    ends = [times[i].astype("datetime64[ms]").item() for i in (0, -1)]
    interval = [[end.replace(tzinfo=UTC) for end in ends]]
    return Extent(
        spatial=spatial, temporal=Temporal(interval=interval, values=texts, trs=TIME_SYSTEM)
    )


def locations(served: Served, base: str) -> dict[str, Any]:
    """The stations, as GeoJSON."""
    stations = served.stations
    features = []
    if stations is not None:
        span = None if served.times is None else "/".join(time_texts(served.times[[0, -1]]))
        names = [column(v, what) for v in served.variables for what in LISTED]
        for name, row in stations.iterrows():
            features.append(
                {
                    "type": "Feature",
                    "id": str(name),
                    "geometry": {"type": "Point", "coordinates": [row["lon"], row["lat"]]},
                    "properties": {
                        "name": str(name),
                        "label": str(name),
                        "datetime": span,
                        "parameter-name": names,
                        "held_out": bool(row["held_out"]),
                        "edrqueryendpoint": f"{base}collections/{COLLECTION}/locations/{name}",
                    },
                }
            )
    return {"type": "FeatureCollection", "features": features}


def _wrapped(lon: float) -> float:
    return float(np.mod(lon + 180.0, 360.0) - 180.0) if not -180 <= lon <= 180 else lon


def _parameter(name: str, about: dict[str, Any]) -> Parameter:
    label = str(about.get("long_name", name)).strip() or name
    unit = str(about.get("units") or "").strip()
    given: dict[str, Any] = {
        "id": name,
        "label": label,
        "data-type": "float",
        "observedProperty": ObservedProperty(label=label),
        "unit": Unit(label=unit, symbol=unit) if unit else None,
    }
    return Parameter(**given)


def _link(
    base: str, path: str, rel: str, title: str, kind: str, templated: bool | None = None
) -> Link:
    return Link(href=f"{base}{path}", rel=rel, title=title, type=kind, templated=templated)


def _query(base: str, here: str, kind: str) -> EDRQuery:
    example = Variables(
        query_type=kind, output_formats=list(FORMATS), default_output_format=FORMATS[0]
    )
    return EDRQuery(link=EDRQueryLink(href=f"{base}{here}/{kind}", rel="data", variables=example))
