# Kernels are compiled while the package is installed, by a compiler from PyPI that pip fetches for it.
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv /opt/paceline \
    && /opt/paceline/bin/pip install --no-cache-dir -c constraints-cpu.txt '.[serve,grammar]'

FROM python:3.12-slim
COPY --from=build /opt/paceline /opt/paceline
RUN useradd --create-home --uid 1000 paceline && mkdir /cache && chown paceline /cache
USER 1000
ENV PATH=/opt/paceline/bin:$PATH PACELINE_CACHE=/cache PYTHONUNBUFFERED=1
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["paceline", "serve", "--host", "0.0.0.0"]
