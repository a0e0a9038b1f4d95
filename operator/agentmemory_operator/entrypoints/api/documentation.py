"""The page `/docs`: Swagger UI from an installed package, so that a browser asks this API and nobody else."""

from importlib.resources import files
from pathlib import Path

import fastapi_offline
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.responses import HTMLResponse

ASSETS = "/docs/assets"
# Unless told not to, the page asks a service on the internet whether the document is valid.
PARAMETERS = {"validatorUrl": None}


def add_docs(app: FastAPI) -> None:
    """Add the page and what it loads."""
    folder = Path(str(files(fastapi_offline) / "static"))
    app.mount(ASSETS, StaticFiles(directory=folder))

    @app.get("/docs", include_in_schema=False)
    async def show() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title=app.title,
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{ASSETS}/favicon.png",
            swagger_ui_parameters=PARAMETERS,
        )
