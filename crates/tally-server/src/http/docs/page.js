// Shows the description of this server. The base layout has no box to open another one.
SwaggerUIBundle({
  url: "../openapi.json",
  dom_id: "#api",
  layout: "BaseLayout",
  tryItOutEnabled: true,
  // The online validator would get a copy of the description.
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
});
