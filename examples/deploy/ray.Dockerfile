# The folder dist/ has the wheels, as for the Dockerfile of the agent.
# docker build --file ray.Dockerfile --tag registry.example/tools-on-ray:1 .
FROM rayproject/ray:2.60.0-py313
COPY dist/ /dist/
RUN pip install --no-cache-dir --find-links /dist \
    'callboard-actors[ray]==0.1.0'
