# The folder dist/ has the wheels, as for the Dockerfile of the agent.
# docker build --file ray.Dockerfile --tag registry.example/tools-on-ray:1 .
FROM rayproject/ray:2.60.0-py313
COPY dist/ /dist/
RUN pip install --no-cache-dir \
    /dist/callboard-0.1.0-py3-none-any.whl \
    '/dist/callboard_actors-0.1.0-py3-none-any.whl[ray]'
