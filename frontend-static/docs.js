// Shows the document of the API.

'use strict';

SwaggerUIBundle({ url: '/api/openapi.json', dom_id: '#docs', deepLinking: true });
