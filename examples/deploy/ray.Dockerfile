# docker build --file ray.Dockerfile --tag registry.example/tools-on-ray:1 .
FROM rayproject/ray:2.60.0-py313
RUN pip install --no-cache-dir 'callboard-actors[ray]==0.1.0'
