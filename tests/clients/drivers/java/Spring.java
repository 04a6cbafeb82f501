import com.azure.messaging.servicebus.ServiceBusReceivedMessageContext;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.spring.cloud.service.servicebus.consumer.*;
import com.azure.spring.cloud.service.servicebus.properties.ServiceBusEntityType;
import com.azure.spring.messaging.servicebus.core.*;
import com.azure.spring.messaging.servicebus.core.listener.ServiceBusMessageListenerContainer;
import com.azure.spring.messaging.servicebus.core.properties.*;
import com.azure.spring.messaging.servicebus.support.ServiceBusMessageHeaders;
import com.fasterxml.jackson.databind.JsonNode;
import java.time.Instant;
import java.time.ZoneOffset;
import java.util.*;
import java.util.concurrent.*;
import org.springframework.messaging.support.MessageBuilder;

/** Spring's messaging for Service Bus: a template that sends, and a listener container for each queue. */
final class Spring {
    private final NamespaceProperties namespace = new NamespaceProperties();
    private final ServiceBusTemplate template;
    private final DefaultServiceBusNamespaceProcessorFactory processors;
    private final Map<String, BlockingQueue<ServiceBusReceivedMessageContext>> arrived = new HashMap<>();
    private final List<ServiceBusReceivedMessageContext> deliveries = new ArrayList<>();

    private Spring() {
        namespace.setConnectionString(Lines.connectionString());
        namespace.getClient().setTransportType(Lines.transport());
        template = new ServiceBusTemplate(new DefaultServiceBusNamespaceProducerFactory(namespace));
        template.setDefaultEntityType(ServiceBusEntityType.QUEUE);
        processors = new DefaultServiceBusNamespaceProcessorFactory(namespace);
    }

    private BlockingQueue<ServiceBusReceivedMessageContext> listening(String path) {
        BlockingQueue<ServiceBusReceivedMessageContext> messages = new LinkedBlockingQueue<>();
        ServiceBusContainerProperties properties = new ServiceBusContainerProperties();
        properties.setEntityName(path);
        properties.setEntityType(ServiceBusEntityType.QUEUE);
        properties.setAutoComplete(false);
        properties.setMessageListener((ServiceBusRecordMessageListener) messages::add);
        properties.setErrorHandler((ServiceBusErrorHandler) context -> System.err.println(context.getException()));
        new ServiceBusMessageListenerContainer(processors, properties).start();
        return messages;
    }

    private Object send(JsonNode given) {
        MessageBuilder<String> message = MessageBuilder.withPayload(given.get("body").asText());
        if (given.hasNonNull("at")) {
            var at = Instant.ofEpochMilli(given.get("at").asLong()).atOffset(ZoneOffset.UTC);
            message.setHeader(ServiceBusMessageHeaders.SCHEDULED_ENQUEUE_TIME, at);
        }
        template.sendAsync(given.get("to").asText(), message.build()).block();
        return null;
    }

    private Object receive(JsonNode given) throws Exception {
        String path = given.get("path").asText();
        var context = arrived.computeIfAbsent(path, this::listening).poll(60, TimeUnit.SECONDS);
        deliveries.add(context);
        return Lines.received(deliveries.size() - 1, context.getMessage());
    }

    private Object settle(JsonNode given) {
        ServiceBusReceivedMessageContext got = deliveries.get(given.get("delivery").asInt());
        switch (given.get("how").asText()) {
            case "accept" -> got.complete();
            case "modify" -> got.abandon();
            case "defer" -> got.defer();
            default -> got.deadLetter(new DeadLetterOptions().setDeadLetterReason("told"));
        }
        return null;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.trust();
        Spring client = new Spring();
        Lines.serve(Map.of("send", client::send, "receive", client::receive, "settle", client::settle));
    }
}
