// Shows the API's document in Swagger UI.

'use strict';

SwaggerUIBundle({ url: '/api/openapi.json', dom_id: '#docs', deepLinking: true });
